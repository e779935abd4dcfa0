"""What slowtok must cost at most, and whether it does: the design's figures, one line each."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench import workloads as w
from bench.own_cost import OwnCost
from bench.report import Rounds, ratio_of, shown, values_of

NAIVE = "of naive's"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound, and what was measured; None where it was not."""

    what: str
    bound: float
    unit: str
    measured: float | None
    is_least: bool = False  # the bound is the least that is wanted, else the most

    def is_met(self) -> bool | None:
        """Return whether it holds; None where it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.bound if self.is_least else self.measured <= self.bound

    def line(self) -> str:
        """Return it as a row of a Markdown table."""
        sign = "at least" if self.is_least else "at most"
        here = "" if self.measured is None else f"{shown(self.measured)} {self.unit}"
        said = {True: "met", False: "**not met**", None: "not measured"}[self.is_met()]
        return f"| {said} | {self.what} | {sign} {shown(self.bound)} {self.unit} | {here} |"


def goals_table(rounds: Rounds, own: OwnCost) -> list[str]:
    """Return how many goals hold, and all of them as a Markdown table: first those that do not."""
    goals = [*_of_relaying(rounds), *_of_its_own(rounds, own)]
    missed = [goal for goal in goals if goal.is_met() is False]
    unknown = [goal for goal in goals if goal.is_met() is None]
    met = [goal for goal in goals if goal.is_met()]
    said = f"{len(missed)} of {len(goals)} goals are not met" if missed else "No goal is missed"
    rows = (goal.line() for goal in [*missed, *unknown, *met])
    return [f"{said}.", "", "| | goal | wanted | here |", "|---|---|--:|--:|", *rows]


def _of_relaying(rounds: Rounds) -> Iterable[Goal]:
    def times_naive(figure: str, load: str, bound: float, *, is_least: bool = False) -> Goal:
        what = f"{figure.removesuffix(', µs')}: {load}"
        return Goal(what, bound, NAIVE, _ratio(rounds, load, figure), is_least=is_least)

    def over(way: str, figure: str, load: str, bound_us: float) -> Goal:
        what = f"{figure.removesuffix(', µs')}, more than {way}: {load}"
        return Goal(what, bound_us, "µs", _over(rounds, way, load, figure))

    yield times_naive(w.CPU, w.CHURN, 1.0)
    yield over("direct", w.P50, w.CHURN, 50)
    yield over("direct", w.P99, w.CHURN, 250)
    yield over("naive", w.P99, w.CHURN, 250)
    yield over("naive", w.P99, w.BURST, 250)
    for load in (w.CHURN, w.BURST):
        yield times_naive(w.TTFT50, load, 1.5)
        yield times_naive(w.TTFT99, load, 1.5)
    yield Goal(f"latency p99: {w.FAST}", 2000, "µs", _own(rounds, w.FAST, w.P99))
    yield times_naive(w.TOKENS_S, w.FAST, 0.99, is_least=True)
    yield times_naive(w.P50, w.ONE, 1.0)
    yield over("direct", w.TTFT50, w.SHORT, 400)
    for load in w.WHOLE.values():
        yield times_naive(w.REQUESTS_S, load, 0.35, is_least=True)


def _of_its_own(rounds: Rounds, own: OwnCost) -> Iterable[Goal]:
    yield Goal("memory per open stream, all processes", 32, "KiB", _own(rounds, w.OPEN, w.MEMORY))
    yield Goal("memory, idle: the largest process", 90, "MiB", own.resident_mib[0])
    yield Goal("memory, idle: all processes", 140, "MiB", sum(own.resident_mib))
    yield Goal("from a stream's last byte to its record", 250, "ms", own.record_ms)
    yield Goal("a diagnosis with its record", 10, "ms of CPU", max(own.diagnosis_ms.values()))
    active = [ratio for _, ratio in own.sampling_ratio.values()]
    sampling = 100 * max(active) if active else None
    yield Goal(
        "sampling while a request runs, the most expensive machine", 1, "% of a core", sampling
    )
    yield Goal("from the command to the first reply", 1, "s", own.start_s)


def _median(found: list[float]) -> float | None:
    return statistics.median(found) if found else None


def _own(rounds: Rounds, load: str, name: str) -> float | None:
    return _median(values_of(rounds, load, "slowtok", name))


def _ratio(rounds: Rounds, load: str, name: str) -> float | None:
    return _median(ratio_of(rounds, load, name))


def _over(rounds: Rounds, way: str, load: str, name: str) -> float | None:
    """Return the median of what each round took longer through slowtok than this way."""
    ours, others = (values_of(rounds, load, each, name) for each in ("slowtok", way))
    return _median([a - b for a, b in zip(ours, others, strict=False)])
