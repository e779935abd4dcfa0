"""Chooses what is reported: the period, and records of a run, model or cause. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from slowtok.proxy.cli.render.console import named
from slowtok.proxy.runs.ledger import MIN_ID_CHARS

_LENGTH = re.compile(r"(\d{1,5})\s*([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Only these: of one run (its id, the begin of it, or its name), model or cause."""

    run: str | None = None
    model: str | None = None
    cause: str | None = None
    slow: bool = False  # only slow or failed ones

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Return True if a record is meant."""
        if self.slow and record.get("verdict") != "slow" and (record.get("status") or 0) < 400:
            return False
        if self.model is not None and record.get("model") != self.model:
            return False
        if self.cause is not None and all(f["cause"] != self.cause for f in named(record)):
            return False
        return self.run is None or self._is_of_run(record.get("run") or {})

    def told(self) -> dict[str, str | None]:
        """Return what was chosen, for the report."""
        return {"run": self.run, "model": self.model, "cause": self.cause}

    def _is_of_run(self, run: Mapping[str, Any]) -> bool:
        wanted, known = self.run or "", str(run.get("id", ""))
        if wanted in (known, run.get("name")):
            return True
        return len(wanted) >= MIN_ID_CHARS and known.startswith(wanted)


class BadPeriod(Exception):
    """A text that names no time. The text says what would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From `since` to `until`, both with a time zone; `before` is as long and ends at `since`."""

    since: datetime
    until: datetime

    @property
    def before(self) -> "Period":
        """The period of the same length just before."""
        return Period(since=self.since - (self.until - self.since), until=self.since)

    def holds(self, at: datetime) -> bool:
        """Return True if a moment is in it."""
        return self.since <= at < self.until


def period_between(since: str, until: str | None, now: datetime) -> Period:
    """Return the period from `since` to `until`, or up to now.

    Raises:
        BadPeriod: one of them is no time, or they are not in order.
    """
    if until is None:
        return period_of(since, now)
    end = period_of(until, now).since
    return period_of(since, end, must_be=f"before --until {until!r}")


def period_of(text: str, now: datetime, *, must_be: str = "in the past") -> Period:
    """Return the period that `1d`, `7d`, `12h` or an ISO date or time begins, up to `now`.

    Args:
        text: what the user gave.
        now: the present, with a time zone; times without one are taken to be in it.
        must_be: what the beginning is told to be where it is not before `now`.

    Raises:
        BadPeriod: it is neither, or not in the past.
    """
    if found := _LENGTH.fullmatch(text.strip().lower()):
        length = timedelta(**{_UNITS[found[2]]: int(found[1])})
        since = now - length if length < timedelta(days=36_500) else now
        return _checked(text, since, now, must_be)
    try:
        since = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadPeriod(
            f"{text!r}: expected a length like 1d, 7d, 12h, or a date like 2026-11-20"
        ) from None
    since = since if since.tzinfo else since.replace(tzinfo=now.tzinfo)
    return _checked(text, since, now, must_be)


def _checked(text: str, since: datetime, now: datetime, must_be: str) -> Period:
    if since >= now:
        raise BadPeriod(f"{text!r} is not {must_be}")
    return Period(since=since, until=now)
