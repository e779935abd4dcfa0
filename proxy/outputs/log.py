"""The log: one JSON line a finished request, rotated, written by a thread of its own.

A disk that is full or slow must never hold up a request: lines go through a bounded queue, what
cannot be queued or written is counted, and writing goes on as soon as it can.
"""

import logging
import logging.handlers
import queue
import sys
from pathlib import Path
from typing import Any

import orjson
import structlog

MAX_QUEUED_LINES = 10_000


def to_json(value: Any, **_: Any) -> str:
    """Serialise one log entry on one line."""
    return orjson.dumps(value, default=str).decode()


class _PlainQueueHandler(logging.handlers.QueueHandler):
    """Hands lines over; a full queue drops the line and counts it."""

    def __init__(self, lines: "queue.Queue[Any]") -> None:
        super().__init__(lines)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


class Log:
    """Writes entries as JSON lines to a file, or to standard output where `path` is None."""

    def __init__(self, path: Path | None, *, max_bytes: int, backups: int) -> None:
        self.path = path
        self.failed_lines = 0
        handler = self._make_handler(path, max_bytes, backups)
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.handleError = self._count_failure  # type: ignore[method-assign]
        self._front = _PlainQueueHandler(queue.Queue(MAX_QUEUED_LINES))
        self._listener = logging.handlers.QueueListener(self._front.queue, handler)
        logger = logging.Logger("slowtok.log")  # not in the registry: nobody else's handlers
        logger.addHandler(self._front)
        self._write = structlog.wrap_logger(
            logger,
            processors=[
                structlog.processors.TimeStamper(fmt="iso", key="ts"),
                structlog.processors.JSONRenderer(serializer=to_json),
            ],
            wrapper_class=structlog.BoundLogger,
        )
        self._listener.start()

    @property
    def dropped_lines(self) -> int:
        """Lines lost because they came faster than they could be written."""
        return self._front.dropped

    def request(self, record: dict[str, Any]) -> None:
        """Write the record of a finished request as it is."""
        self._front.handle(_bare_record(to_json(record)))

    def event(self, name: str, **facts: Any) -> None:
        """Write something else that happened: an engine found, a sensor restarted."""
        self._write.info(name, **facts)

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._listener.stop()
        for handler in self._listener.handlers:
            handler.close()

    def _make_handler(self, path: Path | None, max_bytes: int, backups: int) -> logging.Handler:
        if path is None:
            return logging.StreamHandler(sys.stdout)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600, exist_ok=True)
        return logging.handlers.RotatingFileHandler(
            path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8", delay=True
        )

    def _count_failure(self, record: logging.LogRecord) -> None:
        self.failed_lines += 1


def _bare_record(line: str) -> logging.LogRecord:
    return logging.LogRecord("slowtok.log", logging.INFO, "", 0, line, None, None)
