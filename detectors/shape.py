"""How a request's rate went over its time: level, step, slope or stalls.

Strategy: arrivals are counted in bins of equal length; a step is the one cut that leaves the least
spread on both sides, taken only if the two sides differ far beyond their own spread. Chunks stand
for tokens: what matters is how their rate changed, not its height.
"""

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case
from slowtok.detectors.once import once

BINS = 40
MIN_BIN_CHUNKS = 4.0
"""Fewer arrivals in a bin, and its count is noise: at 4 the spread is already a half."""

MIN_SIDE_BINS = 3
MIN_STEP_RATIO = 0.8
"""A step changes the rate by at least a fifth. No published source."""

MIN_STEP_SIGMA = 5.0
"""By how many standard errors the two sides differ. No published source."""

MIN_STALL_S = 0.5
MIN_STALL_GAPS = 15.0
"""A stall is longer than half a second and than this many usual gaps. No published source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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


@once
def step_of(case: Case) -> Step | None:
    """Return the one lasting change of the rate, None where it was level or only drifted."""
    times = case.timeline.token_at_s
    counts, bin_s = _counts(times)
    if len(counts) < 2 * MIN_SIDE_BINS:
        return None
    cut = min(range(MIN_SIDE_BINS, len(counts) - MIN_SIDE_BINS + 1), key=lambda i: _cost(counts, i))
    before, after = statistics.fmean(counts[:cut]), statistics.fmean(counts[cut:])
    if not _differ(counts[:cut], counts[cut:]):
        return None
    at_s = times[0] + cut * bin_s
    tokens = case.timeline.tokens.completion or len(times)
    per_chunk = tokens / len(times)
    return Step(
        at_s=at_s,
        token=round(sum(counts[:cut]) * per_chunk),
        before_tps=before * per_chunk / bin_s,
        after_tps=after * per_chunk / bin_s,
    )


@once
def stalls_of(case: Case) -> tuple[Stall, ...]:
    """Return the gaps that are far longer than this request's usual ones."""
    times = case.timeline.token_at_s
    if len(times) <= MIN_STALL_GAPS:
        return ()
    gaps = list(map(operator.sub, times[1:], times))
    least_s = max(MIN_STALL_S, MIN_STALL_GAPS * statistics.median(gaps))
    if max(gaps) < least_s:
        return ()
    return tuple(
        Stall(end_s=end_s, gap_s=gap_s)
        for end_s, gap_s in zip(times[1:], gaps, strict=True)
        if gap_s >= least_s
    )


def _counts(times: Sequence[float]) -> tuple[list[int], float]:
    """Return arrivals per bin, with the length of a bin; none for too few arrivals."""
    span_s = times[-1] - times[0] if times else 0.0
    bins = min(BINS, int(len(times) / MIN_BIN_CHUNKS))
    if span_s <= 0 or bins < 1:
        return [], 0.0
    bin_s = span_s / bins
    counts = [0] * bins
    for at_s in times[1:]:
        counts[min(int((at_s - times[0]) / bin_s), bins - 1)] += 1
    return counts, bin_s


def _cost(counts: Sequence[int], cut: int) -> float:
    return _scatter(counts[:cut]) + _scatter(counts[cut:])


def _scatter(side: Sequence[int]) -> float:
    """Return the sum of squares around the mean: `statistics` counts exactly, and slowly."""
    middle = sum(side) / len(side)
    return sum((count - middle) ** 2 for count in side)


def _differ(before: Sequence[int], after: Sequence[int]) -> bool:
    low, high = sorted((statistics.fmean(before), statistics.fmean(after)))
    if high <= 0 or low / high > MIN_STEP_RATIO:
        return False
    error = math.hypot(*(_standard_error(side) for side in (before, after)))
    return high - low >= MIN_STEP_SIGMA * error


def _standard_error(counts: Sequence[int]) -> float:
    # counting alone scatters by a half at these bins, even where the spread happens to be nil
    spread = max(statistics.pstdev(counts), 0.5)
    return spread / math.sqrt(len(counts))
