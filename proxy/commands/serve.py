"""`slowtok serve`: open the port, run the proxy until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from aiohttp import web
from rich.console import Console
from rich.text import Text

from slowtok.config.settings import Settings
from slowtok.detectors.case import Case
from slowtok.detectors.catalog import CATALOG, cause_of
from slowtok.detectors.finding import Diagnosis
from slowtok.proxy.app import Proxy, make_app, make_runner
from slowtok.proxy.door import Door, most_connections, open_port
from slowtok.proxy.drain import Stop, drain, under_way
from slowtok.proxy.engines import Engines
from slowtok.proxy.observer import Sink
from slowtok.proxy.outputs.console import is_telling, plain, request_line
from slowtok.proxy.outputs.lines import to_file, to_stdout
from slowtok.proxy.outputs.log import Log
from slowtok.proxy.outputs.otel import open_otel
from slowtok.proxy.outputs.recorder import Recorder

BACKLOG = 1024  # connections that the kernel keeps until they are accepted
FIRST_LOOK_S = 1.0  # the greeting waits at most this long for the engines to answer

T = TypeVar("T")


class Screen:
    """Standard output, through a thread: readable lines, or the JSON lines of the log."""

    def __init__(self, *, json: bool) -> None:
        self.writer = to_stdout()
        self._log = Log(self.writer) if json else None
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._is_terminal = self._console.is_terminal
        self.greeted = False  # until then the greeting tells of engines

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Show a finished request; what merely passed through is shown only when it failed."""
        if self._log is not None:
            self._log(case, diagnosis, record)
        elif is_telling(record):
            self._show(request_line(record))

    def tell(self, event: str, **facts: Any) -> None:
        """Show what else happened; of that, people want to see engines that went away."""
        if self._log is not None:
            self._log.event(event, **facts)
        elif event == "engine-lost":
            self.say(plain(f"engine    {facts.get('url')} does not answer any more"))
        elif event == "stopping":
            self.say(f"stopping  {facts['requests']} under way; once more stops at once")
        elif event == "engine-found" and self.greeted:
            version = f" {facts['version']}" if facts.get("version") else ""
            self.say(plain(f"engine    {facts.get('url')} ({facts.get('kind')}{version}) is here"))

    def say(self, text: str) -> None:
        """Show a plain line, or put it on standard error where lines are JSON."""
        if self._log is not None:
            sys.stderr.write(text + "\n")
        else:
            self.writer.write(text)

    def _show(self, text: Text) -> None:
        if not self._is_terminal:  # nothing to colour: a fraction of the work
            self.writer.write(text.plain)
            return
        with self._console.capture() as captured:
            self._console.print(text, end="")
        self.writer.write(captured.get())


def run_serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code.

    Raises:
        SettingsError: a cause that is not known, or a port, log or directory that cannot be used.
    """
    _check_causes(settings)
    with contextlib.ExitStack() as opened:
        listener = _usable(
            settings,
            "listen",
            lambda: open_port(settings.host, settings.port, settings.client_timeout_s),
        )
        opened.callback(listener.close)
        _check_upstreams(settings, int(listener.getsockname()[1]))
        screen = Screen(json=settings.json_lines or settings.log_path is None)
        opened.callback(screen.writer.close)
        sinks: dict[str, Sink] = {"screen": screen}
        log = _usable(settings, "log" if settings.log else "state_dir", lambda: _open_log(settings))
        if log is not None:
            opened.callback(log.writer.close)
            sinks["log"] = log
        if settings.record:
            directory = Path(settings.record).expanduser()
            recorder = _usable(settings, "record", lambda: Recorder(directory))
            opened.callback(recorder.writer.close)
            sinks["record"] = recorder
        if settings.otlp_endpoint:
            sinks["otel"], sender = open_otel(settings)
            opened.callback(sender.close)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, listener, log, screen, sinks))
    return 0


async def _serve(
    settings: Settings,
    listener: socket.socket,
    log: Log | None,
    screen: Screen,
    sinks: dict[str, Sink],
) -> None:
    tell = _teller(log, screen)
    logging.basicConfig(level=logging.WARNING, handlers=[_Told(tell)])
    proxy = Proxy(settings, sinks, tell=tell)
    app = make_app(proxy, own_port=lambda: int(listener.getsockname()[1]))
    runner = make_runner(app)
    stop = _stop_on_signals()
    await runner.setup()
    try:
        server = cast(web.Server, runner.server)  # it is set up
        proxy.door = Door(server, most_connections(settings.max_connections), tell=tell)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(proxy.door, sock=listener, backlog=BACKLOG)
        await _greet(screen, listener, proxy.engines)
        await stop.asked.wait()
        listening.close()  # another slowtok may take the port now
        if requests := under_way(proxy, server):
            tell("stopping", requests=requests, grace_s=settings.grace_s)
        if cut_off := await drain(proxy, server, settings.grace_s, stop.at_once):
            tell("cut-off", requests=cut_off)
    finally:
        await runner.cleanup()


async def _greet(screen: Screen, listener: socket.socket, engines: Engines) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    await engines.first_look(FIRST_LOOK_S)
    for engine in engines.all:
        state = (
            f"{engine.kind} {engine.version or ''}".rstrip() if engine.identity else "no answer yet"
        )
        models = f": {', '.join(engine.models)}" if engine.models else ""
        screen.say(plain(f"engine    {engine.url} ({state}{models})"))
    if not engines.all:
        screen.say(
            f"engine    none found yet ({engines.looked_at}); still looking. Start one, e.g."
        )
        screen.say("          llama-server -m model.gguf    or    ollama serve")
    screen.greeted = True
    screen.say(f"listening http://{shown}:{port}  (OpenAI clients: http://{shown}:{port}/v1)")


def _teller(log: Log | None, screen: Screen) -> Callable[..., None]:
    """Return what tells of events: to the log and to the screen."""

    def tell(event: str, **facts: Any) -> None:
        if log is not None:
            log.event(event, **facts)
        screen.tell(event, **facts)

    return tell


class _Told(logging.Handler):
    """Turns what libraries log into events: an error's kind and place; its text may hold a key."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else None
        self._tell(
            "internal-error",
            logger=record.name,
            error=type(error).__name__ if error else None,
            at=f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None,
        )


def _check_causes(settings: Settings) -> None:
    causes = {cause_of(detector) for detector in CATALOG}
    for name in settings.disable:
        if name not in causes:
            raise settings.fault("disable", f"no cause is called {name!r}; see docs/causes.md")


def _check_upstreams(settings: Settings, own_port: int) -> None:
    """Refuse slowtok's own address as an engine: it would ask itself without end."""
    own_names = (settings.host, "localhost", "127.0.0.1", "::1", "0.0.0.0")
    for _, url in settings.upstreams():
        parts = urlsplit(url)
        if parts.port == own_port and parts.hostname in own_names:
            raise settings.fault("upstream", f"{url} is slowtok's own address")


def _usable(settings: Settings, key: str, make: Callable[[], T]) -> T:
    """Make what a setting asks for; what the system refuses is the setting's fault."""
    try:
        return make()
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise settings.fault(key, f"cannot be used: {reason}") from None


def _open_log(settings: Settings) -> Log | None:
    """Return the log; None where the screen writes the same JSON lines to standard output."""
    path = settings.log_path
    if path is None:
        return None
    return Log(to_file(path, max_bytes=settings.log_max_bytes, backups=settings.log_backups))


def _stop_on_signals() -> Stop:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the runner instead
            loop.add_signal_handler(name, stop.ask)
    return stop


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop
