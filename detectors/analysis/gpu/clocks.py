"""The rule of lower clocks: how much longer work takes, for every cause that lowers them.

    time / healthy time = (1 - s) x healthy / now of the memory + s x healthy / now of the SMs

Sources: noonghunna/club-3090, docs/img/*.py: one stream of llama.cpp on an RTX 3090 under 21 power
caps, the memory at 9,501 MHz in all of them. A 35B-A3B MoE (Q4_K_XL) took 1.12, 1.20 and 1.49 times
as long a token at 1,530, 1,290 and 900 MHz as at 1,935: s = 0.43. A dense 27B (Q3_K_XL, costly to
unpack) took 1.12, 1.44 and 1.68 times as long at 1,380, 975 and 825 as at 1,680: s = 0.6 to 0.7.
Prefill took 1.22 and 2.04 times as long at 1,350 and 735 as at 1,710: s = 0.8. A GB10 at 799
instead of 2,418 MHz gave 42.7 instead of 75 tokens/s (Blackwellboy/model-serving-minefield, trap
124): s = 0.37. Others lose next to nothing (two RTX 3090 in club-3090#698; arXiv 2501.08219). So s
differs from model to model, and the rule gives what is usual and what is the most; nothing is said
by it without an observed loss that it explains (`clock_loss`). Memory: an RTX 5090 locked to half
of its memory clock took 1.55 times as long (the same folder, six streams); 1.6 by this rule.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.gpu_window import gpus_during, median
from slowtok.detectors.analysis.host_window import runs_on_cpu
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.case.memo import cached_for_last_case, cached_for_last_case_by_args

Concerns = Callable[[GpuSample], bool]
"""Which samples show the cause in question."""

SmShare = Mapping[Phase, float]
"""The share of the healthy time that goes with the SM clock; the rest goes with the memory's."""

SM_SHARE: SmShare = {"decode": 0.4, "prefill": 0.8}
"""As usual."""

MAX_SM_SHARE: SmShare = {"decode": 0.7, "prefill": 1.0}
"""The most of what was measured for decode; arithmetic alone goes with the clock altogether."""

MEMORY_ALONE: SmShare = {"decode": 0.0, "prefill": 0.0}
"""A decode that does nothing but read goes with the memory's clock altogether: its bandwidth is
bus width times clock."""

SM_OF_MAX_RATIO = 0.8
MAX_SM_OF_MAX_RATIO = 0.95
"""Healthy cards that their power limits run at 0.80 to 0.95 of their highest SM clock. The low end,
so that only what is below all of them counts (3090: 1,680 of 2,100; GB10: 2,418 of 3,003 MHz); the
high end for the most that may be lost (4090: 2,820 of 3,105 MHz, noonghunna/club-3090#697)."""

MEMORY_OF_MAX_RATIO = 0.95
"""CUDA on GeForce runs in P2: 9,501 of 9,751 MHz (RTX 3090), 7,601 of 8,001 (A5000), 10,251 of
10,501 (RTX 4090)."""

HIGH_QUANTILE = 0.9

IDLE_BUSY_RATIO = 0.05
"""A GPU that is less busy takes no part; heuristic: a desktop alone keeps one so busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Clocks in MHz, None where not known. `own` says that this GPU itself was seen to reach them.

    The other source is the card's highest clock, with what healthy cards stay below it.
    """

    sm: float | None
    memory: float | None
    own: bool = False


@cached_for_last_case
def decodes_on_gpu(case: Case) -> bool:
    """Return True if a GPU of this machine that is seen here serves the request."""
    return case.server.local is not False and bool(case.device.gpus) and not runs_on_cpu(case)


@cached_for_last_case_by_args
def serving_samples(case: Case, phase: Phase) -> dict[int, tuple[GpuSample, ...]]:
    """Return the samples of a phase of the GPUs that took part in it.

    Raises:
        Missing: there are none.
    """
    gpus = gpus_during(case, phase)
    if len(gpus) == 1 or case.server.gpu_indices:
        return gpus
    busy = {i: found for i, found in gpus.items() if _busy(found) >= IDLE_BUSY_RATIO}
    return busy or gpus


@cached_for_last_case_by_args
def healthy(
    case: Case, gpu: GpuFacts, samples: Sequence[GpuSample], sm_of_max: float = SM_OF_MAX_RATIO
) -> Clocks:
    """Return what this GPU reaches under load: its own best, or what the card's highest allows.

    The greater of both: a past that was always held back sets no standard.
    """
    past = case.history if len(case.server.gpu_indices or case.device.gpus or ()) == 1 else None
    sm = _high(samples, lambda s: s.sm_clock_mhz)
    memory = _high(samples, lambda s: s.memory_clock_mhz)
    sm_past = None if past is None else past.best_sm_clock_mhz
    memory_past = None if past is None else past.best_memory_clock_mhz
    sm_card = None if gpu.max_sm_clock_mhz is None else sm_of_max * gpu.max_sm_clock_mhz
    memory_card = gpu.max_memory_clock_mhz and MEMORY_OF_MAX_RATIO * gpu.max_memory_clock_mhz
    return Clocks(
        sm=_most(sm, sm_past, sm_card),
        memory=_most(memory, memory_past, memory_card),
        own=sm_past is not None or memory_past is not None,
    )


def slower(now: Clocks, good: Clocks, phase: Phase, sm_share: SmShare = SM_SHARE) -> float | None:
    """Return how many times longer the work takes at these clocks; None where none is known."""
    sm, memory = _ratio(good.sm, now.sm), _ratio(good.memory, now.memory)
    if sm is None and memory is None:
        return None
    share = sm_share[phase]
    return (1 - share) * (memory or 1.0) + share * (sm or 1.0)


def lost_ratio(
    samples: Sequence[GpuSample],
    good: Clocks,
    phase: Phase,
    concerns: Concerns,
    sm_share: SmShare = SM_SHARE,
) -> float | None:
    """Return the share of the time that lower clocks took in the samples that `concerns` picks.

    In each stretch of time the work done would have taken 1 / slower of it at healthy clocks.
    """
    lost = []
    times: dict[tuple[float | None, float | None], float | None] = {}  # few clocks, many samples
    for sample in samples:
        clocks = sample.sm_clock_mhz, sample.memory_clock_mhz
        if clocks not in times:
            times[clocks] = slower(clocks_of(sample), good, phase, sm_share)
        taken = times[clocks]
        if taken is not None:
            lost.append(1 - 1 / taken if concerns(sample) else 0.0)
    return statistics.fmean(lost) if lost else None


def clocks_of(sample: GpuSample) -> Clocks:
    """Return a sample's clocks."""
    return Clocks(sm=sample.sm_clock_mhz, memory=sample.memory_clock_mhz)


def median_clocks(samples: Sequence[GpuSample]) -> Clocks:
    """Return the medians of the clocks."""
    return Clocks(
        sm=median(samples, lambda s: s.sm_clock_mhz),
        memory=median(samples, lambda s: s.memory_clock_mhz),
    )


def _busy(samples: Sequence[GpuSample]) -> float:
    found = median(samples, lambda s: s.busy_ratio)
    return 1.0 if found is None else found


def _high(samples: Sequence[GpuSample], read: Callable[[GpuSample], float | None]) -> float | None:
    """Return what one sample in ten reaches: a throttle that begins later leaves it there."""
    values = sorted(value for s in samples if (value := read(s)) is not None)
    return values[int(HIGH_QUANTILE * (len(values) - 1))] if values else None


def _most(*clocks: float | None) -> float | None:
    return max((clock for clock in clocks if clock is not None), default=None)


def _ratio(good: float | None, now: float | None) -> float | None:
    return max(good / now, 1.0) if good and now else None
