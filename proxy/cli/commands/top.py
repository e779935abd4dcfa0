"""`slowtok top`: what runs now, how fast against what is expected, and what the machine does."""

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import json_text, plain
from slowtok.proxy.cli.render.top import MAX_RECENT, frame
from slowtok.proxy.cli.running_proxy import NotThere, not_slowtok, read_page

DONE, FAILED = 0, 1
KEYS = "q ends"
END_KEYS = ("q", "Q", "\x04", "\x1b")
RECORDS = f"requests?limit={4 * MAX_RECENT}"  # some merely passed through
_ODD_SHAPE = (AttributeError, IndexError, KeyError, TypeError, ValueError)

Pause = Callable[[float], str]
"""Waits so many seconds at most; returns the key that was pressed, empty without."""


def run_top(settings: Settings, *, once: bool, interval_s: float) -> int:
    """Show it until q or Ctrl-C; one frame where that is asked for or nobody looks on.

    Returns 1 where there is no slowtok at the beginning; one that goes away later is waited for.
    """
    screen = Console(highlight=False)
    try:
        first = _look(settings)
        if settings.json_lines:
            sys.stdout.write(json_text(_as_json(*first)) + "\n")
        elif once or not screen.is_terminal:
            screen.print(_shown(screen, *first))
        else:
            _follow(settings, screen, interval_s)
    except NotThere as reason:
        return complain(str(reason), FAILED)
    except KeyboardInterrupt:
        pass
    return DONE


def _follow(settings: Settings, screen: Console, interval_s: float) -> None:
    shown = Live(console=screen, screen=True, auto_refresh=False, vertical_overflow="crop")
    with single_keys() as pause, shown as live:
        while True:
            live.update(_next(settings, screen), refresh=True)
            if pause(interval_s) in END_KEYS:
                return


def _next(settings: Settings, screen: Console) -> RenderableType:
    """Return the next frame, or why there is none."""
    try:
        return _shown(screen, *_look(settings), keys=KEYS)
    except NotThere as reason:
        return Text(f"{plain(str(reason))}\nstill looking; {KEYS}", "yellow")


def _look(settings: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    status, records = read_page(settings, "status"), read_page(settings, RECORDS)
    if not isinstance(status, dict) or "engines" not in status or not isinstance(records, list):
        raise NotThere(not_slowtok(settings))
    return status, records


def _shown(
    screen: Console, status: dict[str, Any], records: list[dict[str, Any]], keys: str = ""
) -> RenderableType:
    try:
        return frame(status, records, width=screen.width, keys=keys)
    except _ODD_SHAPE:  # written by another version
        raise NotThere(
            "this slowtok cannot show what the running one says: their versions differ"
        ) from None


def _as_json(status: dict[str, Any], records: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("version", "listen", "running", "gpus", "host", "counts")
    now = {name: status[name] for name in names if name in status}
    return {"event": "top", "schema": 1, **now, "recent": records[:MAX_RECENT]}


@contextlib.contextmanager
def single_keys() -> Iterator[Pause]:
    """Take keys as they are pressed, and give the terminal back as it was.

    Where standard input is no terminal, or on Windows, there are none: Ctrl-C ends it.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield _without_keys
        return
    import termios  # noqa: PLC0415 - not on Windows
    import tty  # noqa: PLC0415 - not on Windows

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _with_keys
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _without_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _with_keys(seconds: float) -> str:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else ""
