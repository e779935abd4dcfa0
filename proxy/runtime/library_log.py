"""Turns `logging` records into log events: of a library's errors only kind and place, no text."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

EXPORTERS = "opentelemetry.exporter."  # what the names of their loggers begin with
OWN = "slowtok."
MAX_WARNINGS = 100  # different ones: an engine may name as many files as it likes. No source


class LibraryLog(logging.Handler):
    """A handler that logs each record as `internal-error`, or `export-failed` for an exporter.

    A library's text may hold a key. A warning of slowtok's own modules has text of its own and is
    no error: it is logged as a `warning`, once, however often it occurs.
    """

    def __init__(self, log_event: Callable[..., None]) -> None:
        super().__init__()
        self._log_event = log_event
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        error = record.exc_info[1] if record.exc_info else None
        if error is None and record.name.startswith(OWN):
            self._warn(record.getMessage())
            return
        frames = traceback.extract_tb(error.__traceback__) if error else None
        self._log_event(
            "export-failed" if record.name.startswith(EXPORTERS) else "internal-error",
            logger=record.name,
            error=type(error).__name__ if error else None,
            at=f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None,
        )

    def _warn(self, message: str) -> None:
        if message not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(message)
            self._log_event("warning", said=message)
