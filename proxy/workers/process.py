"""The process of one worker: started, controlled over its channel, restarted when it dies."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from slowtok.proxy.relay.settings import RelaySettings
from slowtok.proxy.workers.channel import Channel, Handlers
from slowtok.proxy.workers.priority import Launcher
from slowtok.proxy.workers.session import WorkerSession
from slowtok.proxy.workers.wire import HEARTBEAT_S, PASSED_ON, STOP_SIGNALS, Start

COMMAND = (sys.executable, "-P", "-m", "slowtok.proxy.workers")
"""-P: as for sampling, a json.py in the folder that the proxy was started in must not be ours."""

PAUSE_S = (0.2, 5.0)
HEALTHY_S = 10.0
"""After a life this long it is started again at once, else after a pause. Heuristic."""

MAX_MISSED_HEARTBEATS = 80
"""One that has said nothing for so many of our own ticks, 20 s, hangs: clients that the kernel
gives to it would wait for ever. Ticks are counted, so that a pause of us all is none. Heuristic."""

STOP_S = 1.0  # until it has said how many requests are on their way
END_S = 6.0  # from the last word to the end of the process; then it is killed. Heuristic


@dataclass(frozen=True, slots=True)
class FirstWorker:
    """The worker that runs already, as its child, the observing process, sees it.

    It is the process that the user started. So whoever signals, stops, limits or prioritises the
    process they know does that to the process that relays their tokens.
    """

    pid: int
    channel: socket.socket
    environment: dict[str, str]  # that of all workers

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """One worker for the lifetime of the proxy, in a succession of processes.

    `listener` is the observing process's own copy of the listening socket: it stays open, so that
    clients that connect while a worker restarts wait for the new one. `first` is the worker that
    runs already and cannot be restarted; `gone` is called when it is lost.
    """

    listener: socket.socket
    settings: RelaySettings
    pages_path: str
    environment: dict[str, str]
    launcher: Launcher
    make_worker_session: Callable[[], WorkerSession]
    log_event: Callable[..., None]
    failed: Callable[[str], None]
    first: FirstWorker | None = None
    gone: Callable[[], None]
    has_tried: asyncio.Event = field(default_factory=asyncio.Event)  # it is ready, or died before
    is_ready: bool = False  # takes clients in
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    cut_off: int = 0
    restarts: int = 0
    _session: WorkerSession | None = None
    _has_drained: bool = False
    _refused: int = 0  # by processes that are gone
    _channel: Channel | None = None
    _process: "subprocess.Popen[bytes] | FirstWorker | None" = None
    _usage: tuple[float, float] | None = None  # when it was looked at, and CPU seconds by then
    _began_s: float = 0.0

    async def keep_running(self) -> None:
        """Run the worker, restarting it when it dies, until it is told to stop."""
        if self.first is not None:
            await self._serve_first(self.first)
            return
        pause_s = PAUSE_S[0]
        while not self.stopping.is_set():
            began_s = time.monotonic()
            code = await self._run_once()
            self._note_ready(is_ready=False)
            lost = self._abandon()
            if self.stopping.is_set():
                self.cut_off += lost  # what it had no time to cut off itself
                return
            self.log_event("worker-died", code=code, requests=lost)
            self.restarts += 1
            if time.monotonic() - began_s >= HEALTHY_S:
                pause_s = PAUSE_S[0]
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self.stopping.wait()
            pause_s = min(pause_s * 2, PAUSE_S[1])

    async def stop(self) -> int:
        """Tell the worker to accept no more clients; return how many requests are in flight."""
        self.stopping.set()
        self.listener.close()
        if self._channel is None:
            return 0
        under_way = await self._channel.wait_for_answer(self._channel.ask("stop"), STOP_S)
        return under_way or 0

    def stop_at_once(self) -> None:
        """Tell the worker to cut off the requests in flight."""
        if self._channel is not None:
            self._channel.tell("stop_at_once")

    def kill(self) -> None:
        """Kill the worker's process."""
        if self._process is not None:
            self._process.kill()

    @property
    def refused(self) -> int:
        """How many connections it refused because of the connection limit."""
        return self._refused + (self._session.refused if self._session else 0)

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """The lag of its event loop at the last heartbeat; empty before the first."""
        return self._session.loop_lag if self._session else {}

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that its memory budget counted at the last heartbeat; empty before the first."""
        return self._session.held if self._session else {}

    def status(self) -> dict[str, Any]:
        """Return the worker's entry for /slowtok/status."""
        session, process = self._session, self._process
        return {
            "pid": process.pid if process else None,
            "ready": self.is_ready,
            "restarts": self.restarts,
            "requests": session.requests if session else 0,
            "in_flight": session.in_flight if session else 0,
            "loop_lag": dict(self.loop_lag),
            "held": dict(self.held),
            **(self._cost(process.pid) if process else {}),
        }

    async def _serve_first(self, first: FirstWorker) -> None:
        """Serve the first worker's channel until it closes.

        The first worker is not restarted: that is up to whoever started it.
        """
        self._began_s, self._process = time.monotonic(), first
        self._session = self.make_worker_session()
        try:
            await self._serve_channel(first.channel, self._session)
        finally:
            is_lost = not (self.stopping.is_set() or self._has_drained)
            if is_lost:
                first.kill()
            self._process = self._channel = None
        self._note_ready(is_ready=False)
        requests = self._abandon()
        if is_lost:
            self.log_event("worker-died", code=None, requests=requests)
        else:  # perhaps it was told to end at once, before we were
            self.stopping.set()
            self.cut_off += requests
        self.gone()

    async def _run_once(self) -> int | None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                descriptors = (theirs.fileno(), self.listener.fileno())
                self._process = self.launcher.start(
                    (*COMMAND, *map(str, descriptors)),
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=self.environment,
                )
        except OSError:
            ours.close()
            return None
        self._began_s, self._usage = time.monotonic(), None
        self._session = session = self.make_worker_session()
        process = self._process
        try:
            await self._serve_channel(ours, session)
            return await _ended(process)
        finally:
            self.kill()
            await asyncio.to_thread(process.wait)
            self._process = self._channel = None

    async def _serve_channel(self, ours: socket.socket, session: WorkerSession) -> None:
        """Serve a worker's channel until it closes, or until its heartbeats stop."""
        loop = asyncio.get_running_loop()
        handlers: Handlers = {
            **session.handlers(),
            "ready": self._note_ready,
            "drained": self._note_drained,
        }
        channel = Channel(handlers, self.failed)
        await loop.create_unix_connection(lambda: channel, sock=ours)
        self._channel = channel
        _send_changes(channel, session)
        channel.tell("start", Start(settings=self.settings, pages_path=self.pages_path))
        if self.stopping.is_set():
            channel.tell("stop")
        try:
            silent_ticks, heartbeats = 0, session.heartbeats
            while not channel.ended.done() and silent_ticks < MAX_MISSED_HEARTBEATS:
                await asyncio.wait((channel.ended,), timeout=HEARTBEAT_S)
                _send_changes(channel, session)
                is_silent = session.heartbeats == heartbeats > 0  # before the first word it starts
                silent_ticks = silent_ticks + 1 if is_silent else 0
                heartbeats = session.heartbeats
        finally:
            channel.close()

    def _note_ready(self, *, is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self.has_tried.set()

    def _note_drained(self, cut_off: int) -> None:
        self.cut_off, self._has_drained = cut_off, True

    def _abandon(self) -> int:
        """End the exchanges of a process that died; return how many there were."""
        session, self._session = self._session, None
        if session is None:
            return 0
        self._refused += session.refused
        return session.abandon()

    def _cost(self, pid: int) -> dict[str, float]:
        """Return its CPU use since the last call, as a share of one core, and its memory."""
        try:
            process = psutil.Process(pid)
            times, resident = process.cpu_times(), process.memory_info().rss
        except psutil.Error:
            return {}
        now = (time.monotonic(), times.user + times.system)
        before, self._usage = self._usage or (self._began_s, 0.0), now
        ratio = (now[1] - before[1]) / max(now[0] - before[0], 1e-3)
        return {"cpu_ratio": round(ratio, 4), "resident_bytes": resident}


def _send_changes(channel: Channel, session: WorkerSession) -> None:
    """Send what has changed of the engines, and of the facts for judging short requests."""
    if (changes := session.changes()) is not None:
        channel.tell("directory", changes)
    if setups := session.changed_setups():
        channel.tell("setups", setups)


def begin_to_relay(listener: socket.socket) -> FirstWorker:
    """Turn this process into the first worker; returns in its child, which is to observe.

    The first worker gets the signals, and passes them on as `PASSED_ON`. It ends after its child,
    with the same exit code.
    """
    shared, pid = environment(), os.getpid()
    ours, theirs = socket.socketpair()
    observing_pid = os.fork()
    if observing_pid:
        for kept in (theirs, listener):
            kept.set_inheritable(True)
        numbers = map(str, (theirs.fileno(), listener.fileno(), observing_pid))
        os.execve(COMMAND[0], (*COMMAND, *numbers), shared)  # noqa: S606 - our own module
    theirs.close()
    for name in STOP_SIGNALS:
        signal.signal(name, lambda *_: None)  # not SIG_IGN, which its own children would inherit
    signal.signal(PASSED_ON, lambda *_: sys.exit(0))  # until there is more to be ended in order
    return FirstWorker(pid, ours, shared)


async def _ended(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code of a process after its last message; None if it hangs."""
    try:
        return await asyncio.to_thread(process.wait, END_S)
    except subprocess.TimeoutExpired:
        return None


def environment() -> dict[str, str]:
    """Return the environment for all workers, with a random PYTHONHASHSEED.

    They must share the key of Python's `hash`, because their prompt fingerprints are compared.
    """
    return {**os.environ, "PYTHONHASHSEED": str(1 + int.from_bytes(os.urandom(4)) % (2**32 - 1))}
