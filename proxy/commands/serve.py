"""`slowtok serve`: open the port, run the proxy until a signal ends it."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console
from rich.text import Text

from slowtok.config.settings import Settings
from slowtok.detectors.case import Case
from slowtok.detectors.finding import Diagnosis
from slowtok.proxy.app import Proxy, make_app, make_runner
from slowtok.proxy.engines import Engines
from slowtok.proxy.observer import Sink
from slowtok.proxy.outputs.console import plain, request_line
from slowtok.proxy.outputs.lines import LineWriter, to_file, to_stdout
from slowtok.proxy.outputs.log import Log, to_json
from slowtok.proxy.outputs.recorder import Recorder

FIRST_LOOK_S = 1.0  # the greeting waits at most this long for the engines to answer


class Screen:
    """Readable lines on standard output, through a thread; quiet where the JSON log goes there."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._lines: LineWriter = to_stdout()

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Show a finished request; what merely passed through is shown only when it failed."""
        if self.json:
            self._lines.write(to_json(record))
        elif diagnosis is not None or (record.get("status") or 0) >= 500:
            self.show(request_line(record))

    def show(self, text: Text) -> None:
        """Show one line of rich text."""
        with self._console.capture() as captured:
            self._console.print(text, end="")
        self._lines.write(captured.get())

    def say(self, text: str) -> None:
        """Show a plain line, or put it on standard error where lines are JSON."""
        if self.json:
            sys.stderr.write(text + "\n")
        else:
            self._lines.write(text)

    def close(self) -> None:
        """Write what is queued."""
        self._lines.close()


def run_serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    try:
        listener = _open_port(settings.host, settings.port)
    except OSError as error:
        return _unusable("listen", settings.listen, error)
    try:
        log = _open_log(settings)
        sinks: dict[str, Sink] = {} if log is None else {"log": log}
        if settings.record:
            sinks["record"] = Recorder(Path(settings.record).expanduser())
    except OSError as error:
        listener.close()
        return _unusable("log or record", error.filename, error)
    screen = Screen(json=settings.json_lines or settings.log_path is None)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(settings, listener, log, screen, {**sinks, "screen": screen}))
    finally:
        screen.close()
        if log is not None:
            log.writer.close()
    return 0


async def _serve(
    settings: Settings,
    listener: socket.socket,
    log: Log | None,
    screen: Screen,
    sinks: dict[str, Sink],
) -> None:
    proxy = Proxy(settings, sinks, tell=_teller(log, screen))
    app = make_app(proxy, own_port=lambda: int(listener.getsockname()[1]))
    runner = make_runner(app)
    stop = _stop_on_signals()
    await runner.setup()
    try:
        await web.SockSite(runner, listener, backlog=1024).start()
        await _greet(screen, listener, proxy.engines)
        await stop.wait()
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
    screen.say(f"listening http://{shown}:{port}  (OpenAI clients: http://{shown}:{port}/v1)")


def _teller(log: Log | None, screen: Screen) -> Callable[..., None]:
    """Return what tells of events: to the log, and of engines that come and go to the screen."""

    def tell(event: str, **facts: Any) -> None:
        if log is not None:
            log.event(event, **facts)
        if event == "engine-lost":
            screen.say(plain(f"engine    {facts.get('url')} does not answer any more"))

    return tell


def _open_port(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _open_log(settings: Settings) -> Log | None:
    """Return the log; None where the screen writes the same JSON lines to standard output."""
    path = settings.log_path
    if path is None:
        return None
    return Log(to_file(path, max_bytes=settings.log_max_bytes, backups=settings.log_backups))


def _unusable(key: str, value: object, error: OSError) -> int:
    reason = error.strerror or type(error).__name__
    sys.stderr.write(plain(f"slowtok: {key} = {value!r}: cannot be used: {reason}") + "\n")
    return 2


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C ends the runner instead
            loop.add_signal_handler(name, stop.set)
    return stop


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop  # noqa: PLC0415 - not on Windows

    return uvloop.new_event_loop
