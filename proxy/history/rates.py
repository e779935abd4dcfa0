"""The rates of earlier requests, in memory: bounded by day, by age and in all.

Strategy: of each day the newest of each kind are kept, so that neither one busy day nor a series
of slow requests pushes out what the weeks before gave. `setup_row` and `day_rows` show them in the
status.
"""

import itertools
import statistics
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.history.keys import BaselineKey

DAY_S = 86_400.0
KEEP_S = 30 * DAY_S
MAX_OF_A_DAY = 32
MAX_SETUPS = 1000
MAX_RATES = 20_000
"""In all. The database keeps as many."""

DRIFT_DAYS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRate:
    """One request's rate; `healthy` says that it was judged normal, and was alone.

    `expected_tps` is what first principles said then, by the slowtok of version `made_by`.
    """

    at_unix_s: float
    tps: float
    expected_tps: float | None
    healthy: bool
    engine_version: str
    made_by: str

    @property
    def day(self) -> int:
        """The day, counted from 1970 in UTC."""
        return int(self.at_unix_s // DAY_S)


_Pile = tuple[int, bool, str]
"""Day, healthy, version of the engine."""


class Rates:
    """Rates by setup."""

    def __init__(self) -> None:
        self._piles: OrderedDict[BaselineKey, dict[_Pile, deque[LearnedRate]]] = OrderedDict()
        self._count = 0
        self.changes = 0
        """How often anything was added: what was worked out of the rates is true until then."""

    def add(self, setup: BaselineKey, rate: LearnedRate) -> None:
        """Keep a rate; what is too old or too much makes room."""
        self.changes += 1
        piles = self._piles.setdefault(setup, {})
        self._piles.move_to_end(setup)
        key = (rate.day, rate.healthy, rate.engine_version)
        if key not in piles:
            self._drop_old(piles, rate.at_unix_s)
            piles[key] = deque(maxlen=MAX_OF_A_DAY)
        self._count += len(piles[key]) < MAX_OF_A_DAY
        piles[key].append(rate)
        while len(self._piles) > MAX_SETUPS or (self._count > MAX_RATES and len(self._piles) > 1):
            _, dropped = self._piles.popitem(last=False)
            self._count -= sum(map(len, dropped.values()))

    def of(self, setup: BaselineKey) -> list[LearnedRate]:
        """Return the setup's rates, days in the order they came."""
        return list(itertools.chain.from_iterable(self._piles.get(setup, {}).values()))

    def setups(self) -> tuple[BaselineKey, ...]:
        """Return all setups, the one that was asked last at the end."""
        return tuple(self._piles)

    def _drop_old(self, piles: dict[_Pile, deque[LearnedRate]], now_unix_s: float) -> None:
        while (key := next(iter(piles), None)) and (key[0] + 1) * DAY_S < now_unix_s - KEEP_S:
            self._count -= len(piles.pop(key))


def setup_row(setup: BaselineKey, rates: Sequence[LearnedRate]) -> dict[str, object]:
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
