"""Downsampling of a long request: a quarter of an hour has ten thousand samples, few are needed.

Strategy: each stretch between two phase boundaries keeps a bounded number of samples, one of each
group of neighbours. Of a GPU, the one with the readings taken once a second (counters, processes,
links); of the host, the middle one, which stands for its group's time. Medians and shares of time
are preserved; counters lose at most one group at each end.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuSample, HostSample

T = TypeVar("T")

MAX_SAMPLES = 200
"""Of one GPU, and of the host, in one stretch: 20 s of a GPU as they are, a quarter of an hour in
steps of 4.5 s. A share of time is then known to 3.5 % at the worst (the standard error of a half).
"""


SELDOM = ("processes", "pcie_width", "vgpu_licensed", "throttled_power_ns", "ecc_errors")
_seldom = attrgetter(*SELDOM)
_NOT_READ = (None,) * len(SELDOM)


def downsampled(case: Case) -> Case:
    """Return the case with at most `MAX_SAMPLES` of each kind in each stretch, in time order."""
    if max(len(case.gpu), len(case.host)) <= MAX_SAMPLES:
        return case
    ends = _ends(case)
    gpu = [
        _fullest(bunch)
        for stretch in _stretches(case.gpu, ends, attrgetter("at_s"))
        for index in {s.index for s in stretch}
        for bunch in _bunches([s for s in stretch if s.index == index])
    ]
    host = [
        _middle(bunch)
        for stretch in _stretches(case.host, ends, lambda s: s.at_s - s.span_s / 2)
        for bunch in _bunches(stretch)
    ]
    return replace(case, gpu=tuple(sorted(gpu, key=attrgetter("at_s"))), host=tuple(host))


def _ends(case: Case) -> list[float]:
    """Return the phase boundaries."""
    p, t = case.phases, case.timeline
    ends = (t.sent_at_s, p.prefill_from_at_s, p.decode_from_at_s, p.decode_to_at_s)
    return sorted(at_s for at_s in ends if at_s is not None)


def _stretches(
    samples: Sequence[T], ends: Sequence[float], at_s: Callable[[T], float]
) -> Iterable[Sequence[T]]:
    ordered = sorted(samples, key=at_s)
    cuts = [bisect_left(ordered, end_s, key=at_s) for end_s in ends]
    for begin, end in pairwise((0, *cuts, len(ordered))):
        yield ordered[begin:end]


def _bunches(samples: Sequence[T]) -> Iterable[Sequence[T]]:
    size = max(-(-len(samples) // MAX_SAMPLES), 1)
    for begin in range(0, len(samples), size):
        yield samples[begin : begin + size]


def _fullest(bunch: Sequence[GpuSample]) -> GpuSample:
    """Return the first sample with once-a-second readings, by their importance."""
    if len(bunch) == 1:
        return bunch[0]
    full = [s for s in bunch if _seldom(s) != _NOT_READ]
    if not full:
        return bunch[len(bunch) // 2]
    first = [next((i for i, value in enumerate(_seldom(s)) if value is not None)) for s in full]
    return full[first.index(min(first))]


def _middle(bunch: Sequence[HostSample]) -> HostSample:
    if len(bunch) == 1:
        return bunch[0]
    span_s = sum([s.span_s for s in bunch])
    return replace(bunch[len(bunch) // 2], at_s=bunch[-1].at_s, span_s=span_s)
