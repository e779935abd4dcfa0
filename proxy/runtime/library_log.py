"""Turns libraries' log messages into events: an error's kind and place; its text may hold a key."""

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

EXPORTERS = "opentelemetry.exporter."  # what the names of their loggers begin with


class LibraryLog(logging.Handler):
    """Logs each entry as an `internal-error`; that of an exporter as an `export-failed`."""

    def __init__(self, log_event: Callable[..., None]) -> None:
        super().__init__()
        self._log_event = log_event

    def emit(self, record: logging.LogRecord) -> None:
        """Log one entry."""
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.extract_tb(error.__traceback__) if error else None
        self._log_event(
            "export-failed" if record.name.startswith(EXPORTERS) else "internal-error",
            logger=record.name,
            error=type(error).__name__ if error else None,
            at=f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None,
        )
