"""`slowtok serve`: open the port, run the proxy until a signal ends it."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.proxy.app import Proxy, make_app
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import plain
from slowtok.proxy.cli.running_proxy import EVERYWHERE, why_not
from slowtok.proxy.cli.screen import Screen
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.outputs.case_file import Recorder
from slowtok.proxy.outputs.log import Log
from slowtok.proxy.outputs.otel import open_otel
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.runtime.background_writer import to_file
from slowtok.proxy.runtime.interpreter import collect_rarely, shorten_switch_interval
from slowtok.proxy.runtime.library_log import LibraryLog
from slowtok.proxy.runtime.service_manager import tell_ready, tell_stopping
from slowtok.proxy.runtime.state_dir import claimed
from slowtok.proxy.server.connection_limit import ConnectionLimiter, raise_descriptor_limit
from slowtok.proxy.server.edge import make_runner
from slowtok.proxy.server.listener import open_listeners
from slowtok.proxy.server.self_test import UnusableLibraryError
from slowtok.proxy.server.server import Server, SingleProcessServer, StopRequest
from slowtok.proxy.workers.pool import WorkerPool
from slowtok.proxy.workers.priority import Launcher, give_way
from slowtok.proxy.workers.process import FirstWorker, begin_to_relay
from slowtok.proxy.workers.wire import PASSED_ON

if sys.platform != "win32":
    import resource

FIRST_LOOK_S = 1.0  # the greeting waits at most this long for the engines to answer

T = TypeVar("T")


def run_serve(settings: Settings) -> int:
    """Serve until SIGINT, SIGTERM or, without nohup, SIGHUP. Returns the exit code.

    Raises:
        SettingsError: a cause that is not known, or a port, log or directory that cannot be used.
    """
    check_settings(settings)
    _write_no_core_file()
    shorten_switch_interval()
    with contextlib.ExitStack() as opened:
        listeners = _usable(
            settings,
            "listen",
            lambda: open_listeners(
                settings.host, settings.port, settings.client_timeout_s, settings.workers
            ),
            lambda error: why_not(error, settings.port),
        )
        for each in listeners:
            opened.callback(each.close)
        listener = listeners[0]
        _check_upstreams(settings, int(listener.getsockname()[1]))
        first = None if sys.platform == "win32" else begin_to_relay(listener)
        screen = Screen(json=settings.json_lines or settings.log_path is None)
        opened.callback(screen.close)
        sinks: dict[str, Sink] = {"screen": screen}
        log = _usable(
            settings,
            "log" if settings.log else "state_dir",
            lambda: _open_log(settings),
            lambda error: _why_no_log(error, settings),
        )
        if log is not None:
            opened.callback(log.writer.close)
            sinks["log"] = log
        if settings.record:
            directory = Path(settings.record).expanduser()
            recorder = _usable(settings, "record", lambda: Recorder(directory))
            opened.callback(recorder.writer.close)
            sinks["record"] = recorder
        other = opened.enter_context(claimed(settings.state_path, _own_words(listener, first)))
        if other is not None:
            _event_logger(log, screen)("state-shared", state_dir=str(settings.state_path), by=other)
        if settings.otlp_endpoint:
            sinks["otel"], sender = open_otel(settings)
            opened.callback(sender.close)
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_serve(settings, listeners, first, log, screen, sinks))
        except UnusableLibraryError as error:
            return complain(str(error), 1)
    return 0


async def _serve(
    settings: Settings,
    listeners: Sequence[socket.socket],
    first: FirstWorker | None,
    log: Log | None,
    screen: Screen,
    sinks: dict[str, Sink],
) -> None:
    listener = listeners[0]
    log_event = _event_logger(log, screen)
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryLog(log_event)])
    proxy = Proxy(settings, sinks, log_event, first_pid=None if first is None else first.pid)
    edge = make_app(proxy, own_port=lambda: int(listener.getsockname()[1]))
    runner = make_runner(edge, settings.max_head_bytes)
    stop = StopRequest()
    if first is not None:
        asyncio.get_running_loop().add_signal_handler(PASSED_ON, stop.ask)
    await runner.setup()
    try:
        server = proxy.server = _make_server(proxy, runner, listeners, first, stop)
        await server.open()
        tell_ready()
        give_way()
        collect_rarely()
        if len(workers := server.workers()) > 1:
            ready = sum(worker["ready"] for worker in workers)
            of_all = "" if ready == len(workers) else f" of {len(workers)}"
            screen.say(f"workers   {ready}{of_all} take clients in")
        await _greet(screen, listener, proxy.engines)
        _warn_of_others(settings, screen, log_event)
        await stop.asked.wait()
        tell_stopping(settings.grace_s)
        requests = await server.close()
        proxy.stop_pages()
        if requests:
            log_event("stopping", requests=requests, grace_s=settings.grace_s)
        if cut_off := await server.drain(stop.at_once):
            log_event("cut-off", requests=cut_off)
    finally:
        await runner.cleanup()


def _make_server(
    proxy: Proxy,
    runner: web.AppRunner,
    listeners: Sequence[socket.socket],
    first: FirstWorker | None,
    stop: StopRequest,
) -> Server:
    """Return what takes clients in: a worker for each listening socket; on Windows this process."""
    settings = proxy.settings
    if first is not None:
        return WorkerPool(
            relay_settings(settings),
            proxy.observer,
            proxy.engines,
            runner,
            listeners,
            first,
            Launcher(),
            stop,
            proxy.log_event,
        )
    server = cast(web.Server, runner.server)  # it is set up
    most = raise_descriptor_limit(settings.max_connections)
    proxy.limiter = ConnectionLimiter(
        server, most, head_timeout_s=settings.head_timeout_s, log_event=proxy.log_event
    )
    return SingleProcessServer(proxy.relay, server, listeners[0], proxy.limiter, settings.grace_s)


async def _greet(screen: Screen, listener: socket.socket, engines: Engines) -> None:
    await engines.first_look(FIRST_LOOK_S)
    for engine in engines.all:
        state = (
            f"{engine.kind} {engine.version or ''}".rstrip() if engine.identity else "no answer yet"
        )
        models = f": {', '.join(engine.models)}" if engine.models else ""
        screen.say(plain(f"engine    {engine.url} ({state}{models})"))
    if not engines.all:
        screen.say(
            f"engine    none found yet ({engines.searched_at}); still looking. Start one, e.g."
        )
        screen.say("          llama-server -m model.gguf    or    ollama serve")
    screen.greeted = True
    host, port = listener.getsockname()[:2]
    for line in addresses(host, port, outward_address(listener.family)):
        screen.say(line)


def addresses(host: str, port: int, outward: str | None) -> Iterator[str]:
    """Yield where people and clients reach the proxy; `outward` is this machine to others."""
    is_everywhere = host in EVERYWHERE
    shown = (outward or EVERYWHERE[host]) if is_everywhere else host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    scope = "on every address of this machine; " if is_everywhere else ""
    yield f"page      {url}/slowtok/"
    yield f"listening {url}  ({scope}OpenAI clients: {url}/v1)"


def outward_address(family: int) -> str | None:
    """Return this machine's address towards other networks; None where it has none.

    No packet is sent: the addresses are those of documentation (RFC 5737, RFC 3849).
    """
    elsewhere = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((elsewhere, 9))
            return str(asked.getsockname()[0])
    except OSError:
        return None


def _warn_of_others(settings: Settings, screen: Screen, log_event: Callable[..., None]) -> None:
    """Say that other machines can come in, and what holds them back."""
    if settings.is_local:
        return
    has_key = bool(settings.api_key.get_secret_value())
    log_event("exposed", listen=settings.listen, api_key=has_key)
    if has_key:
        said = "need the key, which goes over the network unencrypted"
    else:
        said = "need no key: they can use the engines and read the records"
    screen.say(f"warning   other machines can reach this address and {said}")


def _own_words(listener: socket.socket, first: FirstWorker | None) -> str:
    """Return which slowtok this is, for another one that shares its state directory."""
    host, port = listener.getsockname()[:2]
    return f"process {os.getpid() if first is None else first.pid} at {host}:{port}"


def _event_logger(log: Log | None, screen: Screen) -> Callable[..., None]:
    """Return what logs an event: a line in the log, and on the screen where people want one."""

    def log_event(event: str, **facts: Any) -> None:
        if log is not None:
            log.event(event, **facts)
        screen.event(event, **facts)

    return log_event


def check_settings(settings: Settings) -> None:
    """Refuse what no slowtok can serve with, before anything is opened.

    Raises:
        SettingsError: a cause that is not known, an address that is open to other machines without
            a key, or more workers than the system can have.
    """
    _check_causes(settings)
    _check_exposed(settings)
    _check_workers(settings)


def _check_causes(settings: Settings) -> None:
    causes = {cause_of(detector) for detector in CATALOG}
    for name in settings.disable:
        if name not in causes:
            raise settings.fault("disable", f"no cause is called {name!r}; see docs/causes.md")


def _check_exposed(settings: Settings) -> None:
    """Refuse to listen where other machines come in, unless a key or the user's word guards it."""
    if settings.is_local or settings.api_key.get_secret_value() or settings.allow_no_key:
        return
    key = "set a key (SLOWTOK_API_KEY, or api_key in a --config file)"
    said = f"other machines can reach it: {key}, or say --allow-no-key"
    raise settings.fault("listen", said)


def _check_workers(settings: Settings) -> None:
    if settings.workers > 1 and sys.platform == "win32":
        said = "on Windows one process does it all: sockets cannot be shared like this"
        raise settings.fault("workers", said)


def _check_upstreams(settings: Settings, own_port: int) -> None:
    """Refuse slowtok's own address as an engine: it would ask itself without end."""
    own_names = (settings.host, "localhost", "127.0.0.1", "::1", "0.0.0.0")
    for _, url in settings.upstreams():
        parts = urlsplit(url)
        if parts.port == own_port and parts.hostname in own_names:
            raise settings.fault("upstream", f"{url} is slowtok's own address")


def _usable(
    settings: Settings,
    key: str,
    make: Callable[[], T],
    why_not: Callable[[OSError | UnicodeError], str] | None = None,
) -> T:
    """Make what a setting asks for; what the system refuses is the setting's fault."""
    try:
        return make()
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        said = why_not(error) if why_not else f"cannot be used: {_reason(error)}"
        raise settings.fault(key, said) from None


def _reason(error: OSError | UnicodeError) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _why_no_log(error: OSError | UnicodeError, settings: Settings) -> str:
    """Return why there can be no log; where nobody said where, with the usual directory."""
    if settings.log or settings.state_dir:
        return f"cannot be used: {_reason(error)}"
    return f"{settings.state_path} cannot be used: {_reason(error)}; --state-dir DIR names another"


def _open_log(settings: Settings) -> Log | None:
    """Return the log; None where the screen writes the same JSON lines to standard output."""
    path = settings.log_path
    if path is None:
        return None
    if settings.log and not path.absolute().parent.is_dir():
        raise settings.fault("log", f"there is no folder {path.parent}")
    return Log(to_file(path, max_bytes=settings.log_max_bytes, backups=settings.log_backups))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop


def _write_no_core_file() -> None:
    """Let a crash write no core file: prompts and keys on their way are in memory."""
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
