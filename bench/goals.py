"""What slowtok must cost at most, and whether it does: the design's figures, one line each."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from bench.own_cost import OwnCost
from bench.report import Rounds, ratio_of, shown, values_of

PACED, FAST = "17,000 tokens/s in 170 streams", "40,000 tokens/s in 400 streams"
ONE, SHORT = "one stream, 200 tokens/s", "short streams, one at a time"
WHOLE = ("whole replies, one at a time", "whole replies, 16 at once")
OPEN = "1,000 open streams"
NAIVE = "of naive's"
P50, P99, CPU = "latency p50, µs", "latency p99, µs", "CPU per token, µs"


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound, and what was measured; None where it was not."""

    what: str
    bound: float
    unit: str
    measured: float | None
    is_least: bool = False  # the bound is the least that is wanted, else the most

    def line(self) -> str:
        """Return it as a row of a Markdown table."""
        sign = "at least" if self.is_least else "at most"
        wanted = f"{sign} {shown(self.bound)} {self.unit}".rstrip()
        if self.measured is None:
            return f"| {self.what} | {wanted} |  | not measured |"
        met = self.measured >= self.bound if self.is_least else self.measured <= self.bound
        said = f"{shown(self.measured)} {self.unit}".rstrip()
        return f"| {self.what} | {wanted} | {said} | {'met' if met else 'missed'} |"


def goals_table(rounds: Rounds, own: OwnCost) -> list[str]:
    """Return all goals as a Markdown table."""
    goals = [*_of_relaying(rounds), *_of_its_own(rounds, own)]
    return ["| goal | wanted | here | |", "|---|--:|--:|---|", *(goal.line() for goal in goals)]


def _of_relaying(rounds: Rounds) -> Iterable[Goal]:
    yield Goal(f"CPU per token, {PACED}", 1.0, NAIVE, _ratio(rounds, PACED, CPU))
    yield Goal(f"latency p50 over direct, {PACED}", 50, "µs", _over_direct(rounds, PACED, P50))
    yield Goal(f"latency p99 over direct, {PACED}", 250, "µs", _over_direct(rounds, PACED, P99))
    yield Goal(f"latency p99, {FAST}", 2000, "µs", _own(rounds, FAST, P99))
    yield Goal(f"latency p50, {ONE}", 1.0, NAIVE, _ratio(rounds, ONE, P50))
    yield Goal(f"TTFT over direct, {SHORT}", 400, "µs", _over_direct(rounds, SHORT, "TTFT p50, µs"))
    for load in WHOLE:
        measured = _ratio(rounds, load, "requests/s")
        yield Goal(f"requests/s, {load}", 0.5, NAIVE, measured, is_least=True)


def _of_its_own(rounds: Rounds, own: OwnCost) -> Iterable[Goal]:
    yield Goal("memory per open stream", 32, "KiB", _own(rounds, OPEN, "memory per stream, KiB"))
    yield Goal("memory, idle: the proxy", 90, "MiB", own.resident_mib)
    yield Goal("memory, idle: all processes", 140, "MiB", own.all_resident_mib)
    yield Goal("a diagnosis with its record", 10, "ms of CPU", max(own.diagnosis_ms.values()))
    active = [ratio for _, ratio in own.sampling_ratio.values()]
    sampling = 100 * max(active) if active else None
    yield Goal("sampling with a request there, the dearest machine", 1, "% of a core", sampling)
    yield Goal("from the command to the open port", 1, "s", own.start_s)


def _median(found: list[float]) -> float | None:
    return statistics.median(found) if found else None


def _own(rounds: Rounds, load: str, name: str) -> float | None:
    return _median(values_of(rounds, load, "slowtok", name))


def _ratio(rounds: Rounds, load: str, name: str) -> float | None:
    return _median(ratio_of(rounds, load, name))


def _over_direct(rounds: Rounds, load: str, name: str) -> float | None:
    """Return the median of what each round took longer through slowtok than without."""
    ours, direct = (values_of(rounds, load, way, name) for way in ("slowtok", "direct"))
    return _median([a - b for a, b in zip(ours, direct, strict=False)])
