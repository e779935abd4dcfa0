"""Compares two results: better, same or worse, beyond noise. Pure.

The rule: two medians differ when the difference is more than the larger of 3 % of the first and
twice the pooled spread of both. The median of three runs scatters by 0.67 of one run's standard
deviation (normal errors), the difference of two such by 0.95 of it, so twice the spread is about
two standard errors. Where each side has one run, nothing tells noise from change: no verdict then.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from slowtok.proxy.cli.bench.figures import BenchRun, Figure

LEAST_RATIO = 0.03
"""Between two starts of one engine medians differ by a percent or two. Heuristic."""

SPREADS = 2.0

Outcome = Literal["better", "same", "worse", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure before and after. `limit` is what the difference had to pass, in its unit.

    It is None, and the outcome `unknown`, where neither side has two runs.
    """

    name: str
    unit: str
    before: float
    after: float
    limit: float | None
    outcome: Outcome

    @property
    def ratio(self) -> float:
        """The change as a share of the value before."""
        return self.after / self.before - 1 if self.before else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact of the setup that is not the same; None where it was not known."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseChange:
    """Which causes were named before and are not now, in both, and only now."""

    gone: tuple[str, ...]
    stayed: tuple[str, ...]
    new: tuple[str, ...]


def cause_change(before: Sequence[BenchRun], after: Sequence[BenchRun]) -> CauseChange:
    """Return what became of the causes; whether a remedy worked shows here first."""
    old, new = _causes(before), _causes(after)
    return CauseChange(
        gone=tuple(cause for cause in old if cause not in new),
        stayed=tuple(cause for cause in old if cause in new),
        new=tuple(cause for cause in new if cause not in old),
    )


def changes(before: Sequence[Figure], after: Sequence[Figure]) -> list[Change]:
    """Return the change of each figure that both results have."""
    earlier = {figure.name: figure for figure in before}
    return [change(earlier[now.name], now) for now in after if now.name in earlier]


def change(before: Figure, after: Figure) -> Change:
    """Hold one figure against its earlier value by the rule above."""
    spread = pooled_spread(before, after)
    limit = None if spread is None else max(LEAST_RATIO * before.median, SPREADS * spread)
    gained = after.median - before.median
    outcome = _outcome(gained if after.more_is_better else -gained, limit)
    return Change(
        name=after.name,
        unit=after.unit,
        before=before.median,
        after=after.median,
        limit=limit,
        outcome=outcome,
    )


def _outcome(gained: float, limit: float | None) -> Outcome:
    if limit is None:
        return "unknown"
    return "same" if abs(gained) <= limit else "better" if gained > 0 else "worse"


def pooled_spread(*figures: Figure) -> float | None:
    """Return the pooled standard deviation; None where no figure has two values."""
    free = sum(len(f.values) - 1 for f in figures)
    if not free:
        return None
    squares = sum((f.spread or 0.0) ** 2 * (len(f.values) - 1) for f in figures)
    return math.sqrt(squares / free)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two setups, by path: `engine.threads`, `gpus.0.driver`."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return [
        Difference(name=name, before=old.get(name), after=new.get(name))
        for name in [*old, *(name for name in new if name not in old)]
        if old.get(name) != new.get(name)
    ]


def _causes(runs: Sequence[BenchRun]) -> dict[str, None]:
    return dict.fromkeys(str(finding["cause"]) for run in runs for finding in run.findings)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif value not in ({}, []):
        yield path, value
