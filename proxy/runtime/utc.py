"""Times as text, in the one format of records, log and status: ISO 8601, milliseconds, UTC."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import overload

_US = 1e6


@overload
def utc_text(unix_s: float) -> str: ...
@overload
def utc_text(unix_s: None) -> None: ...
def utc_text(unix_s: float | None) -> str | None:
    """Return `2026-11-20T12:59:01.250+00:00`; None for a moment that is not known."""
    if unix_s is None:
        return None
    microseconds = round(unix_s % 1.0 * _US)
    if microseconds >= _US:
        return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
    return f"{_second(unix_s // 1.0)}.{microseconds // 1000:03d}+00:00"


@lru_cache(maxsize=2)
def _second(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
