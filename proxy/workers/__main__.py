"""One worker process: accepts clients and relays; the observing process does everything else.

    python -m slowtok.proxy.workers CHANNEL LISTENER [OBSERVING_PID]

The first two arguments are file descriptors shared with the observing process, which tells the
worker when to stop. A worker whose channel ends accepts no more clients and finishes the requests
in flight.

The first worker is the process that the user started, and the observing process is its child.
Signals are sent to the first worker, which passes them on; it waits for its child and exits with
the same code.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import aiohttp
import uvloop
from aiohttp import web
from yarl import URL

from slowtok.detectors.case.case import Case
from slowtok.proxy.http import headers
from slowtok.proxy.http.response import error_page
from slowtok.proxy.observe.setups import SetupKey
from slowtok.proxy.relay.relay import Relay
from slowtok.proxy.runtime.interpreter import collect_rarely, shorten_switch_interval
from slowtok.proxy.runtime.library_log import LibraryLog
from slowtok.proxy.runtime.loop_lag import LoopLag
from slowtok.proxy.server.access import AccessPolicy
from slowtok.proxy.server.connection_limit import ConnectionLimiter, raise_descriptor_limit
from slowtok.proxy.server.edge import make_edge, make_relay, make_runner
from slowtok.proxy.server.listener import accept
from slowtok.proxy.server.self_test import fast_path_works
from slowtok.proxy.server.server import StopRequest, drain, under_way
from slowtok.proxy.upstream.client import make_session
from slowtok.proxy.workers.channel import Channel, Handlers
from slowtok.proxy.workers.remote import RemoteEngines, RemoteObserver
from slowtok.proxy.workers.wire import (
    HEARTBEAT_S,
    PASSED_ON,
    STOP_SIGNALS,
    Heartbeat,
    RemoteDirectory,
    Start,
)

GOODBYE_S = 5.0  # for the last words to reach an observing process that is far behind. Heuristic
OBSERVER_END_S = 30.0
"""From the last reply of any worker to the end of the observing process, which may still send
traces and write logs; then it is killed. Heuristic."""

CONNECT_S = 5.0


class Worker:
    """The parts of one worker process, for the lifetime of its event loop."""

    def __init__(self) -> None:
        self._start: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._stop = StopRequest()
        self._has_been_signalled = False
        self._lag = LoopLag()
        handlers: Handlers = {
            "start": self._start.set_result,
            "directory": self._update_directory,
            "setups": self._learn_setups,
            "stop": self._stop_taking_in,
            "stop_at_once": self._stop.at_once.set,
        }
        self._channel = Channel(handlers, self._count_failure)
        self._observer = RemoteObserver(self._channel, self._lag.most_since)
        self._engines = RemoteEngines(self._channel)
        self._limiter: ConnectionLimiter | None = None
        self._under_way: Callable[[], int] = lambda: 0
        self._held: Callable[[], dict[str, int]] = dict
        self.grace_s = 0.0  # as told at the start

    async def run(self, channel: socket.socket, listener: socket.socket) -> None:
        """Relay until the observing process says stop or is gone."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._channel, sock=channel)
        self._channel.ended.add_done_callback(lambda _: self._stop.asked.set())
        await asyncio.wait((self._start, self._channel.ended), return_when=asyncio.FIRST_COMPLETED)
        if self._start.done():
            await self._serve(self._start.result(), listener)

    def signalled(self, observing_pid: int) -> None:
        """Pass a signal on; the second one stops at once."""
        pass_on(observing_pid)
        if self._has_been_signalled:
            self._stop.ask_at_once()
        self._has_been_signalled = True

    async def _serve(self, start: Start, listener: socket.socket) -> None:
        settings = start.settings
        self.grace_s = settings.grace_s
        async with contextlib.AsyncExitStack() as opened:
            session = await opened.enter_async_context(
                make_session(settings.connect_timeout_s, settings.max_head_bytes)
            )
            pages = Pages(start.pages_path, self._observer.sync)
            opened.push_async_callback(pages.close)
            # why not, the observing process has told
            use_fast_path = await fast_path_works(lambda *_, **__: None)
            relay = make_relay(
                settings, session, self._engines, self._observer, use_fast_path=use_fast_path
            )
            edge = make_edge(
                AccessPolicy(settings, lambda: self._limiter),
                relay.handle,
                pages.routes(),
                is_stopping=self._stop.asked.is_set,
            )
            runner = make_runner(edge, settings.max_head_bytes)
            await runner.setup()
            server = cast(web.Server, runner.server)  # it is set up
            self._under_way = lambda: under_way(relay, server)
            self._held = relay.memory_budget.summary
            most = raise_descriptor_limit(settings.max_connections)
            self._limiter = ConnectionLimiter(
                server, most, head_timeout_s=settings.head_timeout_s, log_event=self._log_event
            )
            accepting = await accept(listener, self._limiter)
            logging.basicConfig(level=logging.WARNING, handlers=[LibraryLog(self._log_event)])
            self._lag.start()
            self._channel.tell("ready")
            await self._beat_until_asked()
            for server_socket in accepting:
                server_socket.close()
            cut_off = await self._drained(relay, server, settings.grace_s)
            await runner.cleanup()
        await self._say_goodbye(start, cut_off)

    async def _beat_until_asked(self) -> None:
        while not self._stop.asked.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._stop.asked.wait()
            self._heartbeat()

    async def _drained(self, relay: Relay, server: web.Server, grace_s: float) -> int:
        """Wait for the requests in flight, with heartbeats; return how many were cut off."""
        draining = asyncio.create_task(drain(relay, server, grace_s, self._stop.at_once))
        while not draining.done():
            await asyncio.wait((draining,), timeout=HEARTBEAT_S)
            self._heartbeat()
        return draining.result()

    async def _say_goodbye(self, start: Start, cut_off: int) -> None:
        """Send the last messages and close the channel; if nobody reads them, clean up instead."""
        self._lag.stop()
        self._heartbeat()
        self._channel.tell("drained", cut_off)
        if self._channel.ended.done():
            shutil.rmtree(Path(start.pages_path).parent, ignore_errors=True)
        self._channel.close()
        await asyncio.wait((self._channel.ended,), timeout=GOODBYE_S)

    def _heartbeat(self) -> None:
        """Report the progress of all requests, and the state of this process."""
        if self._channel.is_full:
            return
        failures = dict(self._observer.failures)
        self._observer.failures.clear()
        refused = self._limiter.refused if self._limiter else 0
        progress = self._observer.progress()
        heartbeat = Heartbeat(progress, failures, refused, self._lag.summary(), self._held())
        self._channel.tell("heartbeat", heartbeat)

    def _update_directory(self, directory: RemoteDirectory) -> None:
        self._engines.update_directory(directory)

    def _learn_setups(self, setups: Mapping[SetupKey, Case | None]) -> None:
        self._observer.learn(setups)

    def _stop_taking_in(self) -> int:
        """Stop accepting clients; return how many requests are in flight."""
        self._stop.asked.set()
        return self._under_way()

    def _log_event(self, event: str, **facts: Any) -> None:
        self._channel.tell("event", event, facts)

    def _count_failure(self, name: str) -> None:
        self._observer.failures[name] += 1


async def work(
    channel: socket.socket, listener: socket.socket, observing_pid: int | None = None
) -> float:
    """Run one worker; with a child that observes (`observing_pid`), the first one.

    Returns for how many seconds other workers may still need to finish their requests.
    """
    worker, loop = Worker(), asyncio.get_running_loop()
    if observing_pid is not None:
        for name in STOP_SIGNALS:
            loop.add_signal_handler(name, worker.signalled, observing_pid)
    await worker.run(channel, listener)
    if observing_pid is not None:  # the loop lets go of them before `ended` takes them
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    return worker.grace_s


def pass_on(pid: int) -> None:
    """Pass a signal on to the observing process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, PASSED_ON)


def ended(pid: int, grace_s: float) -> int:
    """Wait until the observing process has ended; return the exit code of both.

    It may still wait up to `grace_s` for other workers, so signals are passed on until the end.
    """
    for name in STOP_SIGNALS:
        signal.signal(name, lambda *_: pass_on(pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    kill = threading.Timer(grace_s + OBSERVER_END_S, os.kill, (pid, signal.SIGKILL))
    kill.daemon = True
    kill.start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kill.cancel()
    if code < 0:
        sys.stderr.write(f"slowtok: the observing process was ended by signal {-code}\n")
        return 1
    return code


def main() -> None:
    """Run a worker with the descriptors in the arguments."""
    channel, listener, *observing_pid = map(int, sys.argv[1:])
    if not observing_pid:
        for name in STOP_SIGNALS:
            signal.signal(name, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # Linux alone has it: top, pgrep and other slowtoks see it
        Path("/proc/self/comm").write_text("slowtok")
    shorten_switch_interval()
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ours, port = (socket.socket(fileno=number) for number in (channel, listener))
        grace_s = runner.run(work(ours, port, *observing_pid))
    for pid in observing_pid:
        sys.exit(ended(pid, grace_s))


class Pages:
    """Forwards requests for the proxy's own pages to the observing process's socket at `path`.

    `sync` waits first until that process has handled all messages, so that a page shows everything
    up to now.
    """

    def __init__(self, path: str, sync: Callable[[], Awaitable[None]]) -> None:
        self._sync = sync
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
        )

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the proxy's own pages."""
        return [
            web.route("*", "/slowtok", self._pass_on),
            web.route("*", "/slowtok/{rest:(?s:.*)}", self._pass_on),
        ]

    async def close(self) -> None:
        """Close all connections to the observing process."""
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Forward a request to the observing process, which checks host, origin and key again."""
        target = URL("http://localhost" + request.rel_url.raw_path_qs, encoded=True)
        fields = headers.to_own_page(request.headers)
        await self._sync()
        try:
            reply = await self._session.request(
                request.method, target, headers=fields, allow_redirects=False
            )
        except (aiohttp.ClientError, TimeoutError, OSError):
            return error_page(503, "slowtok's observing process does not answer", "not-there")
        async with reply:
            passed = headers.to_client(reply.headers, origin=None)
            response = web.StreamResponse(status=reply.status, headers=passed)
            try:
                await response.prepare(request)
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            except (ConnectionError, aiohttp.ClientError):
                response.force_close()  # one of both is gone: a page that is cut short looks so
                if request.transport is not None:
                    request.transport.close()
            return response


if __name__ == "__main__":
    main()
