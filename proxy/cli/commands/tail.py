"""`slowtok tail`: the log's requests, readable, as they come."""

import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.cli.complaint import complain
from slowtok.proxy.cli.render.console import is_telling, plain, request_line
from slowtok.proxy.cli.report.choice import Choice
from slowtok.proxy.cli.running_proxy import NO_LOG_HINT, log_of
from slowtok.proxy.outputs.log import escaped
from slowtok.proxy.runtime.log_files import LogCheck, NotASlowtokLogError

Shown = Callable[[Console, bytes, dict[str, Any] | None], str]

ALL = Choice()
POLL_S = 0.2
DONE, FAILED, NO_LOG = 0, 1, 3


def run_tail(settings: Settings, choice: Choice = ALL, *, last: int, follow: bool) -> int:
    """Print the last requests of the log that are meant, then new ones until Ctrl-C.

    Returns the exit code.

    Raises:
        SettingsError: the log goes to standard output, which cannot be followed.
    """
    path = log_of(settings)
    if not path.exists():
        return complain(f"there is no log at {path}; {NO_LOG_HINT}", NO_LOG)
    try:
        with _stop_on_ctrl_c() as stop:
            shown = partial(_shown, choice=choice, json=settings.json_lines)
            found = _print_all(path, last, stop, shown, follow=follow)
        if not found:
            which = "" if choice == ALL else "such "
            sys.stderr.write(plain(f"no {which}request in {path} yet") + "\n")
    except BrokenPipeError:  # the reader has seen enough; what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.filename is None:  # it is standard output that cannot be written
            raise
        return complain(f"{path}: {error.strerror}", FAILED)
    except NotASlowtokLogError as reason:
        return complain(str(reason), FAILED)
    return DONE


@contextmanager
def _stop_on_ctrl_c() -> Iterator[threading.Event]:
    """Yield what Ctrl-C sets: a KeyboardInterrupt that strikes in a finaliser would be lost."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _print_all(
    path: Path, last: int, stop: threading.Event, shown_as: Shown, *, follow: bool
) -> bool:
    """Print them; without `follow` it ends, and says whether there was one."""
    console = Console(highlight=False, soft_wrap=True)
    shown: deque[str] = deque(maxlen=last)
    check, caught_up = LogCheck(), False
    for line in _lines(path):
        if stop.is_set():
            return True
        if line is None:  # all that is there has been read
            if not caught_up:
                check.raise_if_foreign(path)
                sys.stdout.writelines(shown)
                sys.stdout.flush()
            caught_up = True
            if not follow:
                return bool(shown) or not last
            stop.wait(POLL_S)
            if _nobody_reads():
                return True
        elif text := shown_as(console, line, check.entry(line)):
            if caught_up:
                sys.stdout.write(text)
                sys.stdout.flush()
            else:
                shown.append(text)
    return True


def _nobody_reads() -> bool:
    """Return True if standard output is a pipe or a terminal whose other end is closed."""
    if sys.platform == "win32":
        return False  # the next line that is written shows it
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), 0)  # how it ends is told without being asked for
    except UnsupportedOperation:  # it is no file at all
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _lines(path: Path) -> Iterator[bytes | None]:
    """Yield whole lines, across rotations; None whenever there are no more for now."""
    while not path.exists():
        yield None
    file, part = path.open("rb"), b""
    try:
        while True:
            rotated = _was_rotated(path, file)
            while piece := file.readline():  # after a rotation: what came before it
                part += piece
                if part.endswith(b"\n"):
                    yield part
                    part = b""
            if rotated:
                file.close()
                file, part = path.open("rb"), b""
            else:
                yield None
    finally:
        file.close()


def _was_rotated(path: Path, file: BinaryIO) -> bool:
    """Return True if the name belongs to another file by now, or to one that was cut."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return now.st_ino != os.fstat(file.fileno()).st_ino or now.st_size < file.tell()


def _shown(
    console: Console, line: bytes, entry: dict[str, Any] | None, *, choice: Choice, json: bool
) -> str:
    """Return what to print of a line; nothing for events, and for what is no record at all."""
    if entry is None or entry["event"] != "request":
        return ""
    width = console.width if console.is_terminal else None  # a pipe gets the line whole
    try:
        if not choice.holds(entry):
            return ""
        if json:
            return escaped(line.decode("utf-8", "replace"))
        if not is_telling(entry):
            return ""
        with console.capture() as captured:
            console.print(request_line(entry, width))
    except (AttributeError, KeyError, TypeError, ValueError):  # written by another version
        return ""
    return captured.get()
