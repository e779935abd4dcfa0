"""The shape of a request's rate over time: level, step, stalls, and the best stretch.

Everything is found on the gaps between arrivals, not on bins of time: a stall of half a second and
a change of rate in the middle of an answer are dated to the token. Gaps are compared in logarithms,
so that a few long ones do not look like a change of rate. A step is the one cut that leaves the
least spread on both sides; it counts only if both sides differ far beyond their own spread, and if
a straight slope does not describe the gaps as well. Arrivals stand for tokens: what matters is how
their rate changed, not its height.
"""

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.memo import cached_for_last_case

MIN_SIDE_GAPS = 12
"""A side of a step has so many gaps: fewer are a stutter. Heuristic."""

MIN_STEP_RATIO = 0.8
"""A step changes the rate by at least a fifth. Heuristic."""

MIN_STEP_SIGMA = 6.0
"""By how many standard errors the two sides differ: the cut is the best of hundreds. Heuristic."""

LEAST_SPREAD = 0.1
"""Of the logarithm of a gap: a clock's ticks and a scheduler's turns alone scatter by a tenth.
Heuristic."""

LEAST_GAP_S = 1e-4
"""Arrivals closer than this came in one read, or as good as."""

ONE_STEP_S = 1e-3
"""Arrivals closer than this are of one step of the engine: accepted drafts, or several answers at
once. Heuristic: one answer alone hardly comes at a thousand tokens per second."""

MIN_STALL_S = 0.5
MIN_STALL_GAPS = 15.0
"""A stall is longer than half a second and than this many usual gaps. No false alarm in 57 healthy
and unexplained runs of an independent simulation."""

BEST_SPAN_S = 0.5
BEST_GAPS = 16
"""The best rate of a request is one that it held for so long, and for so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStep:
    """A lasting change of the rate at `at_s`; `token` is about how many had come by then.

    Rates are in tokens per second where the count is known, else relative.
    """

    at_s: float
    token: int
    before_tps: float
    after_tps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A gap of `gap_s` without a token that ended at `end_s`."""

    end_s: float
    gap_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Arrivals at a steady rate: `per_s` of them from number `first` to number `last`."""

    per_s: float
    first: int
    last: int


@cached_for_last_case
def step_of(case: Case) -> RateStep | None:
    """Return the one lasting change of the rate, None where it was level or only drifted."""
    times = case.timeline.token_at_s
    gaps = gaps_of(case)
    if len(gaps) < 2 * MIN_SIDE_GAPS:
        return None
    logs = [math.log(max(gap_s, LEAST_GAP_S)) for gap_s in gaps]
    cut = _best_cut(logs)
    if cut is None:
        return None
    at_s, end_s = times[cut], times[-1]
    before_s, after_s = (
        side_s - sum(stall.gap_s for stall in stalls_of(case) if begin_s < stall.end_s <= to_s)
        for side_s, begin_s, to_s in (
            (at_s - times[0], times[0], at_s),
            (end_s - at_s, at_s, end_s),
        )
    )
    per_chunk = (case.timeline.tokens.completion or len(times)) / len(times)
    if min(before_s, after_s) <= 0:
        return None
    return RateStep(
        at_s=at_s,
        token=round(cut * per_chunk),
        before_tps=cut * per_chunk / before_s,
        after_tps=(len(gaps) - cut) * per_chunk / after_s,
    )


@cached_for_last_case
def stalls_of(case: Case) -> tuple[Stall, ...]:
    """Return the gaps that are far longer than this request's usual ones."""
    times = case.timeline.token_at_s
    if len(times) <= MIN_STALL_GAPS:
        return ()
    gaps = gaps_of(case)
    least_s = max(MIN_STALL_S, MIN_STALL_GAPS * usual_gap_s(gaps))
    if max(gaps) < least_s:
        return ()
    return tuple(
        Stall(end_s=end_s, gap_s=gap_s)
        for end_s, gap_s in zip(times[1:], gaps, strict=True)
        if gap_s >= least_s
    )


@cached_for_last_case
def best_stretch(case: Case) -> Stretch | None:
    """Return the fastest stretch of arrivals that was held; None where the answer is too short."""
    times = case.timeline.token_at_s
    count, last = len(times), 0
    best_per_s, best_first, best_last = 0.0, 0, 0
    for first, begin_s in enumerate(times):
        while last < count and (last - first < BEST_GAPS or times[last] - begin_s < BEST_SPAN_S):
            last += 1
        if last >= count:
            break
        per_s = (last - first) / (times[last] - begin_s)
        if per_s > best_per_s:
            best_per_s, best_first, best_last = per_s, first, last
    return Stretch(per_s=best_per_s, first=best_first, last=best_last) if best_last else None


def usual_gap_s(gaps: Sequence[float]) -> float:
    """Return the median of the gaps between steps, of all gaps where nothing else came."""
    return statistics.median([gap_s for gap_s in gaps if gap_s >= ONE_STEP_S] or gaps)


@cached_for_last_case
def gaps_of(case: Case) -> list[float]:
    """Return the seconds between one read that carried tokens and the next."""
    times = case.timeline.token_at_s
    return list(map(operator.sub, times[1:], times))


def _best_cut(logs: Sequence[float]) -> int | None:
    """Return how many gaps lie before the step, None where there is none.

    With sums of the gaps and of their squares, the spread on both sides of each cut is two
    subtractions; what a cut takes away from it is n1 x n2 / n x (difference of the means) squared.
    """
    count, sums = len(logs), list(accumulate(logs))
    total = sums[-1]

    def taken(cut: int) -> float:
        difference = sums[cut - 1] / cut - (total - sums[cut - 1]) / (count - cut)
        return cut * (count - cut) / count * difference * difference

    cut = max(range(MIN_SIDE_GAPS, count - MIN_SIDE_GAPS + 1), key=taken)
    before, after = sums[cut - 1] / cut, (total - sums[cut - 1]) / (count - cut)
    if abs(after - before) < -math.log(MIN_STEP_RATIO) or taken(cut) <= _taken_by_slope(logs):
        return None
    squares = sum(log * log for log in logs) - total * total / count
    spread = math.sqrt(max(squares - taken(cut), 0.0) / count)
    error = max(spread, LEAST_SPREAD) * math.sqrt(1 / cut + 1 / (count - cut))
    return cut if abs(after - before) >= MIN_STEP_SIGMA * error else None


def _taken_by_slope(logs: Sequence[float]) -> float:
    """Return how much of the spread a straight line takes away."""
    count = len(logs)
    middle, mean = (count - 1) / 2, math.fsum(logs) / count
    along = sum((i - middle) * (log - mean) for i, log in enumerate(logs))
    return along * along / (count * (count * count - 1) / 12)
