"""Single keys from a terminal, and a pause that one of them ends."""

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator

Pause = Callable[[float], str]
"""Waits so many seconds at most; returns the key that was pressed, empty without."""


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
