"""Lines written by a thread of their own: a full disk or a stuck terminal never holds up a request.

Lines go through a bounded queue. What does not fit and what cannot be written is counted, and
writing goes on as soon as it can.
"""

import logging
import logging.handlers
import queue
import sys
from pathlib import Path
from typing import Any

MAX_QUEUED_LINES = 10_000


class _Front(logging.handlers.QueueHandler):
    """Hands lines over; a full queue drops the line and counts it."""

    def __init__(self, lines: "queue.Queue[Any]") -> None:
        super().__init__(lines)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class LineWriter:
    """Writes lines to a handler of the standard library, in order, in a thread."""

    def __init__(self, handler: logging.Handler) -> None:
        self.failed = 0
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.handleError = self._count  # type: ignore[method-assign]
        self._handler = handler
        self._front = _Front(queue.Queue(MAX_QUEUED_LINES))
        self._listener = logging.handlers.QueueListener(self._front.queue, handler)
        self._listener.start()

    @property
    def dropped(self) -> int:
        """Lines lost because they came faster than they could be written."""
        return self._front.dropped

    def write(self, line: str) -> None:
        """Queue one line."""
        self._front.handle(logging.LogRecord("slowtok", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._listener.stop()
        self._handler.close()

    def _count(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - as logging calls it
        self.failed += 1


def to_stdout() -> LineWriter:
    """Return a writer to standard output."""
    return LineWriter(logging.StreamHandler(sys.stdout))


def to_file(path: Path, *, max_bytes: int, backups: int) -> LineWriter:
    """Return a writer to a file that only its owner can read, rotated by size.

    Raises:
        OSError: the file cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=True)
    with path.open("ab"):
        pass
    return LineWriter(
        logging.handlers.RotatingFileHandler(
            path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", delay=True
        )
    )
