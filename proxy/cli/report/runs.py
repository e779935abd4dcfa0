"""The runs of a period: what each cause would give back, and the worst ones. Pure, bounded.

A run whose last request is an hour old has ended: its account is made, and its turns are let go.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from slowtok.proxy.runs.account import Json, summary
from slowtok.proxy.runs.ledger import is_run
from slowtok.proxy.runs.turn import NoTurn, Turn, turn_of

MAX_OPEN_TURNS = 20_000
ENDED_AFTER_S = 3600.0
MAX_SHOWN = 10


class RunTally:
    """Counts runs, fed with records in their order."""

    def __init__(self) -> None:
        self._open: dict[str, list[Turn]] = {}
        self._turns = 0
        self._looked_s = 0.0
        self._won_ms: Counter[str] = Counter()
        self._worst: list[tuple[float, int, Json]] = []
        self._ended = 0

    def add(self, record: Mapping[str, Any], at: datetime) -> bool:
        """Count a request; False where it is of no run."""
        if "run" not in record:
            return False
        try:
            turn = turn_of(record)
        except NoTurn:
            return False
        self._open.setdefault(turn.run, []).append(turn)
        self._turns += 1
        now_s = at.timestamp()
        if now_s - self._looked_s > ENDED_AFTER_S or self._turns > MAX_OPEN_TURNS:
            self._close_ended(now_s)
        return True

    def won_ms(self) -> Counter[str]:
        """Return the wall time that each cause would give back."""
        self._close_all()
        return self._won_ms

    def dearest(self) -> list[Json]:
        """Return the runs that would win most, the first one first."""
        self._close_all()
        return [run for _, _, run in sorted(self._worst, key=lambda one: (-one[0], one[1]))]

    def _close_ended(self, now_s: float) -> None:
        self._looked_s = now_s
        for run, turns in list(self._open.items()):
            if now_s - turns[-1].ends_s > ENDED_AFTER_S or self._turns > MAX_OPEN_TURNS:
                self._close(run)

    def _close_all(self) -> None:
        for run in list(self._open):
            self._close(run)

    def _close(self, run: str) -> None:
        turns = self._open.pop(run)
        self._turns -= len(turns)
        told = summary(turns)
        self._won_ms.update({cause: round(ms) for cause, ms in told["won_ms"].items()})
        if not is_run(turns):
            return
        self._ended += 1
        best = max(told["won_ms"].values(), default=0.0)
        heapq.heappush(self._worst, (best, -self._ended, told))
        if len(self._worst) > MAX_SHOWN:
            heapq.heappop(self._worst)
