"""Turns log messages into events: of libraries only an error's kind and place, never its text."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

EXPORTERS = "opentelemetry.exporter."  # what the names of their loggers begin with
OWN = "slowtok."
MAX_WARNINGS = 100  # different ones: an engine may name as many files as it likes. No source


class LibraryLog(logging.Handler):
    """Logs each entry as an `internal-error`; that of an exporter as an `export-failed`.

    A library's text may hold a key. What a module of slowtok warns of is in its own words, and no
    error in slowtok: it is told as it is, as a `warning`, once however often it is found.
    """

    def __init__(self, log_event: Callable[..., None]) -> None:
        super().__init__()
        self._log_event = log_event
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Log one entry."""
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

    def _warn(self, said: str) -> None:
        if said not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(said)
            self._log_event("warning", said=said)
