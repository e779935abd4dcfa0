"""Counts over many records, in memory that does not grow with their number. Pure.

A run whose last request is an hour old has ended: its account is made, and its turns are let go.
"""

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from slowtok.proxy.cli.render.console import named
from slowtok.proxy.runs.account import Json, summary
from slowtok.proxy.runs.ledger import is_run
from slowtok.proxy.runs.turn import PHASES, NoTurn, Turn, turn_of

MAX_NAMES = 500
"""Models that are counted apart; a client may ask for any name. The rest is `(others)`."""

OTHERS, UNEXPLAINED = "(others)", "unexplained"
CACHE_MISS = "prompt-cache-miss"
COMPUTED_AGAIN = "tokens computed again"

Record = Mapping[str, Any]

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

    def costliest(self) -> list[Json]:
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


@dataclass(slots=True)
class Loss:
    """One cause: what it cost, and the request that it cost most."""

    requests: int = 0
    lost_ms: float = 0.0
    worst_ms: float = 0.0
    worst_id: str = ""
    worst_model: str = ""
    summary: str = ""
    remedy: str = ""

    def add(self, lost_ms: float, record: Record, finding: Mapping[str, Any]) -> None:
        """Count a request that it slowed."""
        self.requests += 1
        self.lost_ms += lost_ms
        if lost_ms >= self.worst_ms:
            self.worst_ms = lost_ms
            self.worst_id = str(record.get("id", ""))
            self.worst_model = str(record.get("model") or "?")
            self.summary = str(finding.get("summary", ""))
            self.remedy = str(finding.get("remedy", ""))


@dataclass(slots=True)
class Group:
    """Requests of one model, or of one hour.

    `generated` are all tokens of all answers, `tokens` those whose `decode_ms` is known: without
    the first of each, which belongs to the prefill.
    """

    requests: int = 0
    judged: int = 0
    slow: int = 0
    total_ms: float = 0.0
    lost_ms: float = 0.0
    generated: int = 0
    tokens: int = 0
    decode_ms: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def decode_tps(self) -> float | None:
        """Tokens generated for each second of decode; None where no request told both."""
        return self.tokens / self.decode_ms * 1000 if self.decode_ms else None


@dataclass(slots=True)
class Tally:
    """All that is counted over one period. Times are in ms, hours in the reader's time zone."""

    zone: tzinfo | None = None
    whole: Group = field(default_factory=Group)
    verdicts: Counter[str] = field(default_factory=Counter)
    slow_phases: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    causes: dict[str, Loss] = field(default_factory=dict)
    models: dict[str, Group] = field(default_factory=dict)
    clients: dict[str, Group] = field(default_factory=dict)
    runs: RunTally = field(default_factory=RunTally)
    spent_ms: Counter[str] = field(default_factory=Counter)
    won_ms: Counter[str] = field(default_factory=Counter)
    hours: dict[datetime, Group] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    wasted_tokens: int = 0

    def add(self, record: Record, at: datetime) -> None:
        """Count one request.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: it is no record; nothing was counted.
        """
        seen = _seen(record)
        groups = [self.whole, _of(self.models, seen.model), self._hour(at)]
        if seen.client is not None:
            groups.append(_of(self.clients, seen.client))
        for group in groups:
            seen.count_in(group)
        if seen.verdict is None:
            self.passed += 1
        else:
            self.verdicts[seen.verdict] += 1
        if seen.verdict == "slow":
            self.slow_phases[seen.phase] += 1
        if seen.failure:
            self.failed[seen.failure] += 1
        self.spent_ms.update(seen.spent_ms)
        is_in_run = self.runs.add(record, at)
        for cause, lost_ms, finding in seen.losses:
            self.causes.setdefault(cause, Loss()).add(lost_ms, record, finding)
            if not is_in_run:
                self.won_ms[cause] += round(lost_ms)
        self.prompt_tokens += seen.prompt_tokens
        self.cached_tokens += seen.cached_tokens
        self.wasted_tokens += seen.wasted_tokens

    def _hour(self, at: datetime) -> Group:
        hour = at.astimezone(self.zone).replace(minute=0, second=0, microsecond=0)
        return self.hours.setdefault(hour, Group())


def _of(groups: dict[str, Group], name: str) -> Group:
    known = name in groups or len(groups) < MAX_NAMES
    return groups.setdefault(name if known else OTHERS, Group())


@dataclass(slots=True, kw_only=True)
class _Seen:
    """One record, read as a whole before anything is counted."""

    model: str
    client: str | None
    verdict: str | None
    phase: str
    failure: str | None
    total_ms: float
    generated: int
    tokens: int
    decode_ms: float
    prompt_tokens: int
    cached_tokens: int
    wasted_tokens: int
    spent_ms: dict[str, int]
    losses: list[tuple[str, float, Mapping[str, Any]]]

    def count_in(self, group: Group) -> None:
        lost_ms = sum(lost for _, lost, _ in self.losses)
        group.requests += 1
        group.judged += self.verdict in ("slow", "normal")
        group.slow += self.verdict == "slow"
        group.total_ms += self.total_ms
        group.lost_ms += lost_ms
        group.generated += self.generated
        group.tokens += self.tokens
        group.decode_ms += self.decode_ms
        for cause, lost, _ in self.losses:
            group.causes[cause] += round(lost)


def _seen(record: Record) -> _Seen:
    timing, tokens = record.get("timing") or {}, record.get("tokens") or {}
    verdict = record.get("verdict")
    completion: Any = tokens.get("completion")
    decode_ms: Any = timing.get("decode_ms")
    is_timed = completion is not None and completion > 1 and decode_ms is not None
    return _Seen(
        model=str(record.get("model") or "(no model)"),
        client=record.get("client"),
        verdict=None if verdict is None else str(verdict),
        phase=str(record.get("phase") or "?"),
        failure=_failure(record),
        total_ms=float(timing.get("total_ms") or 0),
        generated=int(completion or 0),
        tokens=int(completion) - 1 if is_timed else 0,
        decode_ms=float(decode_ms) if is_timed else 0.0,
        prompt_tokens=int(tokens.get("prompt") or 0),
        cached_tokens=int(tokens.get("cached") or 0),
        wasted_tokens=_computed_again(record),
        spent_ms={p: round(timing[f"{p}_ms"]) for p in PHASES if timing.get(f"{p}_ms")},
        losses=list(_losses(record)) if verdict == "slow" else [],
    )


def _losses(record: Record) -> list[tuple[str, float, Mapping[str, Any]]]:
    """Return what each cause cost a slow request, and what nobody explains."""
    found = [(str(f["cause"]), float(f.get("lost_ms") or 0), f) for f in named(record)]
    unexplained = (record.get("budget_ms_per_token") or {}).get(UNEXPLAINED)
    completion = (record.get("tokens") or {}).get("completion")
    if unexplained and completion:
        found.append((UNEXPLAINED, float(unexplained) * int(completion), {}))
    return found


def _computed_again(record: Record) -> int:
    """Return the prompt tokens that were known and computed all the same."""
    return sum(
        int(e["value"])
        for f in record.get("findings") or ()
        if f["cause"] == CACHE_MISS
        for e in f.get("evidence") or ()
        if e["name"] == COMPUTED_AGAIN
    )


def _failure(record: Record) -> str | None:
    """Name how a request failed; None where it did not. A client that left is no failure."""
    status = record.get("status")
    if status is None or int(status) < 400:
        return "upstream-error" if record.get("ended") == "upstream-error" else None
    return f"{record.get('ended') or 'error'} ({int(status)})"
