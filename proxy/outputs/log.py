"""The log: JSON lines, one for each finished request and one for whatever else happens."""

import time
from typing import Any

import orjson
import structlog

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.runtime.background_writer import LineWriter
from slowtok.proxy.runtime.utc import utc_text


class Log:
    """Writes JSON lines. As a sink it writes records as they are."""

    def __init__(self, writer: LineWriter) -> None:
        self.writer = writer
        self._events = structlog.wrap_logger(
            None,
            processors=[_stamp, self._put],
            wrapper_class=structlog.BoundLogger,
        )

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Write the record of a finished request."""
        self.writer.write(to_json(record))

    def event(self, event: str, **facts: Any) -> None:
        """Write something else that happened: an engine found, a sensor restarted."""
        self._events.info(event, **facts)

    def _put(self, _logger: Any, _method: str, entry: Any) -> Any:
        self.writer.write(to_json({k: v for k, v in entry.items() if v is not None}))
        raise structlog.DropEvent


def _stamp(_logger: Any, _method: str, entry: Any) -> Any:
    """Say when it happened, in the format of the records beside it."""
    return {"ts": utc_text(time.time()), **entry}


def to_json(value: Any) -> str:
    """Serialise one entry on one line."""
    return orjson.dumps(value, default=str).decode()
