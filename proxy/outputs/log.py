"""The log as JSON lines: one for each finished request, and one for each other event."""

import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import structlog
from structlog.processors import JSONRenderer
from structlog.typing import EventDict

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.runtime.background_writer import LineWriter
from slowtok.proxy.runtime.utc import utc_text

BETWEEN = "\t\n\r"  # in JSON they stand between values, never in a text


def to_json(value: Any, default: Callable[[Any], Any] = str) -> str:
    """Serialise one entry on one line; `default` converts what JSON does not support."""
    return escaped(orjson.dumps(value, default=default).decode())


def escaped(text: str) -> str:
    """Return equivalent JSON without characters that could control a terminal.

    JSON itself escapes those of ASCII; names of models and engines may have others.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in BETWEEN else json.dumps(c)[1:-1] for c in text)


class Log:
    """Writes JSON lines: records as a sink, other events through structlog."""

    def __init__(self, writer: LineWriter) -> None:
        self.writer = writer
        self._events = structlog.wrap_logger(
            writer,
            processors=[_add_time, _drop_unknown, JSONRenderer(to_json, default=str)],
            wrapper_class=structlog.BoundLogger,  # passes `write` on to the writer
        )

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Write the record of a finished request."""
        self.writer.write(to_json(record))

    def event(self, event: str, **facts: Any) -> None:
        """Write another event, such as an engine that was found or a sensor that restarted."""
        self._events.write(event, **facts)


def _add_time(_logger: LineWriter, _method: str, entry: EventDict) -> EventDict:
    """Add the time of an entry, in the format of the records."""
    return {"ts": utc_text(time.time()), **entry}


def _drop_unknown(_logger: LineWriter, _method: str, entry: EventDict) -> EventDict:
    return {name: value for name, value in entry.items() if value is not None}
