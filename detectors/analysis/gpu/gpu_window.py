"""GPU samples of one phase: medians, gains of counters, shares of time.

Invariant: a reading that no sample holds is None here too; nothing is filled in. Functions that
take samples of several GPUs say so; the others want those of one (`by_gpu`).
"""

import statistics
from collections.abc import Callable, Iterable, Sequence

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.engine import ServerFacts
from slowtok.detectors.case.finding import need
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.case.memo import cached_for_last_case_by_args
from slowtok.detectors.expectation.memory import is_tensor_parallel

Read = Callable[[GpuSample], float | None]
Typical = Callable[[Sequence[GpuSample], Read], float | None]

STALE_S = 1.0
"""Utilization and power are means of up to 1 s (nvml.h): what they say at first is of before."""

MIN_BUSY_RATIO = 0.85
"""A GPU that is busy for less of a phase waits for something. Heuristic: healthy decodes are 90 to
99 % busy, spinning or not."""

MAX_IDLING_POWER_RATIO = 0.70
"""A GPU that counts as busy and draws no more of its own best, or of its limit where that is not
known, does little: many small kernels, or code that does not fit it. An old build: 98 % busy at
47 % of the limit, a new one at 80 % (Blackwellboy/model-serving-minefield, trap 46). Heuristic: the
value between; healthy cards may be at 0.55 of their limit, so that alone says nothing."""


def by_gpu(samples: Sequence[GpuSample]) -> dict[int, tuple[GpuSample, ...]]:
    """Return the samples of each GPU by its index."""
    indices = sorted({s.index for s in samples})
    if len(indices) == 1:
        return {indices[0]: tuple(samples)}
    return {index: tuple(s for s in samples if s.index == index) for index in indices}


@cached_for_last_case_by_args
def gpus_during(case: Case, phase: Phase) -> dict[int, tuple[GpuSample, ...]]:
    """Return the samples of a phase by GPU, of those that the server uses.

    Raises:
        Missing: there are none.
    """
    return by_gpu(need(case.gpu_during(phase) or None, f"GPU samples during {phase}"))


def without_first_second(samples: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the samples without those of the first second, whose utilization is of before."""
    if not samples:
        return ()
    from_s = samples[0].at_s + STALE_S
    return tuple([s for s in samples if s.at_s >= from_s])


def busy_together(
    gpus: Iterable[Sequence[GpuSample]], server: ServerFacts, typical: Typical
) -> float | None:
    """Return how busy the GPUs of a server were, without the stale first second.

    GPUs that work one after the other are busy in turns: together as much as one alone would be.
    `typical` makes one value of the readings of one GPU: their median or their mean.
    """
    each = [typical(without_first_second(samples), lambda s: s.busy_ratio) for samples in gpus]
    known = [value for value in each if value is not None]
    together = max if is_tensor_parallel(server) else sum
    return min(together(known), 1.0) if known else None


def gpu_facts(case: Case, index: int) -> GpuFacts:
    """Return what is known of one GPU."""
    return next((g for g in case.device.gpus or () if g.index == index), GpuFacts(index=index))


def median(samples: Sequence[GpuSample], read: Read) -> float | None:
    """Return the median of a reading."""
    values = [value for s in samples if (value := read(s)) is not None]
    return statistics.median(values) if values else None


def most(samples: Sequence[GpuSample], read: Read) -> float | None:
    """Return the highest value of a reading."""
    return max((value for s in samples if (value := read(s)) is not None), default=None)


def newest(samples: Sequence[GpuSample], read: Read) -> float | None:
    """Return the last known value of a reading."""
    return next((value for s in reversed(samples) if (value := read(s)) is not None), None)


def share_with_bits(samples: Sequence[GpuSample], bits: int) -> float | None:
    """Return the share of samples whose clocks-event mask has any of these bits."""
    masks = [s.reasons for s in samples if s.reasons is not None]
    return sum(1 for mask in masks if mask & bits) / len(masks) if masks else None


def gained(samples: Sequence[GpuSample], read: Read) -> float | None:
    """Return what a counter gained; None with fewer than two readings, or where it fell."""
    known = [value for s in samples if (value := read(s)) is not None]
    return known[-1] - known[0] if len(known) > 1 and known[-1] >= known[0] else None


def gained_ratio(samples: Sequence[GpuSample], read_ns: Read) -> float | None:
    """Return the share of the time that a counter of ns counted, at most 1."""
    counted = [s for s in samples if read_ns(s) is not None]
    total_ns = gained(counted, read_ns)
    span_s = counted[-1].at_s - counted[0].at_s if counted else 0.0
    return None if total_ns is None or span_s <= 0 else min(total_ns / 1e9 / span_s, 1.0)
