"""Writing in a thread of its own: a full disk or a stuck terminal never holds up a request.

What is to be written goes through a bounded queue. What does not fit and what cannot be written is
counted, and writing goes on as soon as it can.
"""

import contextlib
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Generic, TypeVar

MAX_QUEUED = 10_000
CLOSE_S = 2.0  # at the end, a writer that is stuck is left behind after this

T = TypeVar("T")


class Writer(Generic[T]):
    """Calls `write` with one item after the other, in order, in a thread.

    `dropped` counts items that came faster than they could be written, `failed` those that could
    not be written at all.
    """

    def __init__(
        self,
        write: Callable[[T], None],
        *,
        close: Callable[[], None] | None = None,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.dropped = 0
        self.failed = 0
        self._write = write
        self._close = close
        self._items: queue.Queue[T | None] = queue.Queue(max_queued)  # None is the end
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def write(self, item: T) -> None:
        """Queue one item; never waits."""
        try:
            self._items.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, and stop; give up on a writer that is stuck."""
        with contextlib.suppress(queue.Full):
            self._items.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._write(item)
            except Exception:  # noqa: BLE001 - a line that cannot be written costs only itself
                self.failed += 1
        if self._close is not None:
            with contextlib.suppress(OSError):
                self._close()


LineWriter = Writer[str]


def to_stdout() -> LineWriter:
    """Return a writer to standard output.

    It has a stream of its own: a thread that is stuck in `sys.stdout` would hold a lock that the
    interpreter needs to end.
    """
    sys.stdout.flush()
    stream = open(  # noqa: SIM115 - a descriptor has no path, and it is not ours to close
        sys.stdout.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False
    )

    def write(line: str) -> None:
        stream.write(line + "\n")
        stream.flush()

    return LineWriter(write)


def to_file(path: Path, *, max_bytes: int, backups: int) -> LineWriter:
    """Return a writer to a file that only its owner can read, rotated by size.

    Raises:
        OSError: the file cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = _PrivateFile(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")

    def write(line: str) -> None:
        file.emit(logging.LogRecord("slowtok", logging.INFO, "", 0, line, None, None))

    return LineWriter(write, close=file.close)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """The standard library's rotated file; its errors are ours, and each new file is private."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's
        raise  # noqa: PLE0704 - called from inside its `except`


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
