"""Learned rates as plain rows for the status."""

import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.history.keys import BaselineKey
from slowtok.proxy.history.rates import DAY_S, LearnedRate

DRIFT_DAYS = 14


def row(setup: BaselineKey, rates: Sequence[LearnedRate]) -> dict[str, object]:
    """Return one setup.

    `count`, `median_tps` and `of_expected_ratio` are of healthy requests, the latter the share of
    what first principles expected; `seen` and `seen_median_tps` are of all. `drift_ratio` is the
    newest day's median against the two weeks before it.
    """
    seen = _medians(rates)
    return {
        "setup": str(setup),
        **_medians([rate for rate in rates if rate.healthy]),
        "seen": seen["count"],
        "seen_median_tps": seen["median_tps"],
        "drift_ratio": _drift_ratio(rates),
    }


def day_rows(setup: BaselineKey, rates: Iterable[LearnedRate]) -> list[dict[str, object]]:
    """Return the medians of each day (UTC) of one setup, of all its requests, the oldest first."""
    return [
        {
            "setup": str(setup),
            "day": datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat(),
            **_medians(found),
        }
        for day, found in sorted(_days(rates).items())
    ]


def _medians(rates: Sequence[LearnedRate]) -> dict[str, object]:
    shares = [rate.tps / rate.expected_tps for rate in rates if rate.expected_tps]
    return {
        "count": len(rates),
        "median_tps": round(statistics.median(rate.tps for rate in rates), 3) if rates else None,
        "of_expected_ratio": round(statistics.median(shares), 3) if shares else None,
    }


def _days(rates: Iterable[LearnedRate]) -> dict[int, list[LearnedRate]]:
    days: dict[int, list[LearnedRate]] = {}
    for rate in rates:
        days.setdefault(rate.day, []).append(rate)
    return days


def _drift_ratio(rates: Sequence[LearnedRate]) -> float | None:
    days = _days(rates)
    newest = max(days, default=0)
    today = days.get(newest, [])
    before = [
        r for day, found in days.items() if newest - DRIFT_DAYS <= day < newest for r in found
    ]
    if len(today) < REFINE_AFTER or len(before) < REFINE_AFTER:
        return None
    # shares follow the context, but only those that one version of slowtok counted compare
    shares = all(r.expected_tps and r.made_by == today[0].made_by for r in (*today, *before))
    now, usual = (
        statistics.median(r.tps / (r.expected_tps or 1.0) if shares else r.tps for r in found)
        for found in (today, before)
    )
    return round(now / usual, 3)
