"""Moments as text, in the one format of records, log and status: ISO 8601, milliseconds, UTC."""

from datetime import UTC, datetime
from typing import overload


@overload
def utc_text(unix_s: float) -> str: ...
@overload
def utc_text(unix_s: None) -> None: ...
def utc_text(unix_s: float | None) -> str | None:
    """Return `2026-11-20T12:59:01.250+00:00`; None for a moment that is not known."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
