"""Writing in a separate thread, so that a full disk or a stuck terminal never delays a request.

Items go through a bounded queue. Those that do not fit and those that cannot be written are
counted, and writing resumes as soon as it can. Lines that follow each other closely are written
together, so that many short requests do not wake the thread, and the disk, once each. The standard
library's QueueHandler and QueueListener, extended to collect lines, take 1.4 to 1.9 times the CPU
time per line of a steady log, wait for a stuck disk without end, and queue only `logging` records,
while case files, rates and spans need this class anyway.
"""

import contextlib
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Generic, TypeVar

MAX_QUEUED = 10_000
GATHER_S = 0.04  # a line waits so long for others; a record is due within 0.25 s
MAX_TOGETHER = 500
AT_ONCE = 50  # into a file: of 100 together each costs more than twice as much, in fresh memory
CLOSE_S = 2.0  # at the end, a writer that is stuck is left behind after this

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Calls `write` with one item after the other, in order, in a thread.

    With `flush`, items that arrive within `gather_s` are written before it is called once for all
    of them. `dropped` counts items that did not fit into the queue, `failed` those that could not
    be written.
    """

    def __init__(
        self,
        write: Callable[[T], None],
        *,
        flush: Callable[[], None] | None = None,
        close: Callable[[], None] | None = None,
        gather_s: float = GATHER_S,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self.dropped = 0
        self.failed = 0
        self._write = write
        self._flush = flush
        self._close = close
        self._gather_s = gather_s
        self._closing = threading.Event()
        self._ended = False
        self._max_queued = max_queued
        self._items: queue.SimpleQueue[T | None] = queue.SimpleQueue()  # None is the end
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def write(self, item: T) -> None:
        """Queue one item; never waits."""
        if self._items.qsize() < self._max_queued:
            self._items.put(item)
        else:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, and stop; gives up on a writer that is stuck."""
        self._closing.set()
        self._items.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ended:
            count = sum(map(self._write_one, self._gathered()))
            try:
                if self._flush is not None and count:
                    self._flush()
            except Exception:  # noqa: BLE001 - lines that cannot be written cost only themselves
                self.failed += count
        if self._close is not None:
            with contextlib.suppress(OSError):
                self._close()

    def _gathered(self) -> Iterator[T]:
        """Yield the next item, and with `flush` those that follow closely."""
        item = self._items.get()
        if self._flush is not None and item is not None:
            self._closing.wait(self._gather_s)
        for left in reversed(range(MAX_TOGETHER)):
            if item is None:
                self._ended = True
                return
            yield item
            if self._flush is None or not left or self._items.empty():
                return
            item = self._items.get()

    def _write_one(self, item: T) -> bool:
        try:
            self._write(item)
        except Exception:  # noqa: BLE001 - a line that cannot be written costs only itself
            self.failed += 1
            return False
        return True


LineWriter = BackgroundWriter[str]


def to_stdout() -> LineWriter:
    """Return a writer to standard output.

    It has a stream object of its own: a thread stuck in `sys.stdout` would hold a lock that the
    interpreter needs to exit.
    """
    sys.stdout.flush()
    stream = open(  # noqa: SIM115 - a descriptor has no path, and it is not ours to close
        sys.stdout.fileno(), "w", encoding="utf-8", errors="backslashreplace", closefd=False
    )

    def write(line: str) -> None:
        stream.write(line + "\n")

    return LineWriter(write, flush=stream.flush)


def to_file(path: Path, *, max_bytes: int, backups: int) -> LineWriter:
    """Return a writer to a file that only its owner can read, rotated by size.

    Raises:
        OSError: the file cannot be created or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = _PrivateFile(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")

    lines: list[str] = []

    def flush() -> None:
        gathered, lines[:] = lines[:], []
        for begin in range(0, len(gathered), AT_ONCE):
            file.emit_together(gathered[begin : begin + AT_ONCE])

    return LineWriter(lines.append, flush=flush, close=file.close)


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """The standard library's rotating file; it raises its errors, and creates private files."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)

    def emit_together(self, lines: list[str]) -> None:
        """Write lines at once if they fit into the current file, else each by itself."""
        if self.stream is not None and not self._is_at_its_path(self.stream):
            self.close()  # the next line opens it anew
        together = _logged("\n".join(lines))
        if not self.shouldRollover(together):
            self.emit(together)
            return
        for record in map(_logged, lines):
            self.emit(record)

    def _is_at_its_path(self, stream: TextIOWrapper) -> bool:
        """Return False if the file was moved or deleted: nobody would find its lines."""
        try:
            return os.path.samestat(os.fstat(stream.fileno()), Path(self.baseFilename).stat())
        except FileNotFoundError:
            return False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's
        raise  # noqa: PLE0704 - called from inside its `except`


def _logged(text: str) -> logging.LogRecord:
    return logging.LogRecord("slowtok", logging.INFO, "", 0, text, None, None)


def _open_private(name: str, flags: int) -> int:
    """Open a file that only its owner can read; a pipe without a reader fails at once."""
    at_once: int = getattr(os, "O_NONBLOCK", 0)  # Windows has no such pipes
    descriptor = os.open(name, flags | at_once, 0o600)
    if at_once:
        os.set_blocking(descriptor, True)
    return descriptor
