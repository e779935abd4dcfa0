"""Lines of a log as the proxy writes them: real records of made-up cases, at chosen times."""

from datetime import datetime
from functools import cache
from typing import Any

import orjson

from fakes.cases import FIRING, case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record


@cache
def _record(cause: str) -> bytes:
    made = FIRING[cause]() if cause else case()
    return orjson.dumps(make_record(made, diagnose(made)))


def record(cause: str = "", **more: Any) -> dict[str, Any]:
    """A normal request, or one that a cause slowed."""
    found: dict[str, Any] = orjson.loads(_record(cause))
    return found | more


def line(at: datetime, cause: str = "", **more: Any) -> bytes:
    """One line of the log."""
    ts = at.isoformat(timespec="milliseconds")
    return orjson.dumps(record(cause, ts=ts, **more)) + b"\n"
