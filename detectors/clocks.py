"""What lower clocks cost: one rule for every cause that lowers a GPU's clocks.

    time / healthy time = (1 - s) x healthy / now of the memory + s x healthy / now of the SMs

A lower clock is no cause by itself. It counts only in a phase that was slow, and only if this rule
explains at least half of how slow it was (in logarithms, as `diagnose` counts).

Sources: noonghunna/club-3090, docs/img/*.py: one stream of llama.cpp on an RTX 3090 over 21 power
caps, the memory at 9,501 MHz in all of them. Decode of a 35B-A3B MoE (Q4_K_XL) took 1.16, 1.20 and
1.49 times as long at 1,425, 1,290 and 900 MHz as at 1,935: s = 0.43; of a dense 27B (Q3_K_XL, costly
to unpack) 1.12, 1.44 and 1.68 times at 1,380, 975 and 825 against 1,680: s = 0.4 at first, 0.7 below;
prefill 1.22 and 2.04 times at 1,350 and 735 against 1,710: s = 0.8. A GB10 at 799 instead of 2,418
MHz decoded 42.7 instead of 75 tokens/s (Blackwellboy/model-serving-minefield, trap 124): s = 0.37.
Others lose next to nothing (two RTX 3090 in club-3090#698; arXiv 2501.08219): so 0.4 is also what
may be too much, which is why an observed loss has to be there. Memory: RTX 5090 locked to half of
its memory clock, SMs unlocked: 1.55 times as long, 1.6 by this rule (same folder, six streams).
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.envelope_memory import is_tensor_parallel
from slowtok.detectors.facts import label
from slowtok.detectors.finding import Evidence, need
from slowtok.detectors.gpu_window import facts_of, gpus_during, median
from slowtok.detectors.machine import GpuFacts, GpuSample
from slowtok.detectors.phases import judge_decode, slowdown
from slowtok.detectors.shape import step_of
from slowtok.detectors.window import runs_on_cpu

Concerns = Callable[[GpuSample], bool]

SM_SHARE: Mapping[Phase, float] = {"decode": 0.4, "prefill": 0.8}
"""The share of the healthy time that goes with the SM clock; the rest goes with the memory's."""

SM_OF_MAX_RATIO = 0.8
"""Healthy cards that their power limits run at 0.80 to 0.95 of their highest SM clock: the low end,
so that only what is below all of them counts (3090: 1,680 of 2,100; GB10: 2,418 of 3,003)."""

MEMORY_OF_MAX_RATIO = 0.95
"""CUDA on GeForce runs in P2: 9,501 of 9,751 MHz (3090), 7,601 of 8,001 (A5000), 10,251 of 10,501."""

MIN_LOOK_S = 2.0
"""A shorter phase gives no evidence: the first second of utilization and power is of before."""

MIN_LOST_RATIO = 0.05
MIN_EXPLAINED_RATIO = 0.5
MIN_SHIFT_RATIO = 0.3
"""A change of rate is the throttle's where it is there this much more often after than before.
None of the three has a published source."""

IDLE_BUSY_RATIO = 0.05
"""A GPU that is less busy takes no part; no published source: a desktop alone keeps one so busy."""

_LAPTOP = re.compile(r"\b(laptop|max-q|mobile)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Clocks in MHz, None where not known. `own` says that this GPU itself was seen to reach them.

    The other source is the card's highest clock, with what healthy cards stay below it.
    """

    sm: float | None
    memory: float | None
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLoss:
    """What lower clocks cost in one phase, with the GPU that lost most: its clocks and samples."""

    phase: Phase
    lost_s: float
    observed: float
    gpu: GpuFacts
    samples: tuple[GpuSample, ...]
    now: Clocks
    healthy: Clocks

    @property
    def said(self) -> str:
        """The clocks in words, those of the memory where they are lower, too."""
        parts = [
            f"{what} at {now:,.0f} instead of about {good:,.0f} MHz"
            for what, now, good in (
                ("processors", self.now.sm, self.healthy.sm),
                ("memory", self.now.memory, self.healthy.memory),
            )
            if now is not None and good is not None and now < good
        ]
        return " and ".join(parts)

    @property
    def name(self) -> str:
        """The GPU's number and name."""
        return label(self.gpu)

    @property
    def evidence(self) -> Evidence:
        """The clock that is further below its healthy value."""
        sm, memory = _below(self.now.sm, self.healthy.sm), _below(
            self.now.memory, self.healthy.memory
        )
        if memory > sm:
            return Evidence(
                name="memory clock",
                value=self.now.memory or 0.0,
                unit="MHz",
                limit=self.healthy.memory,
            )
        return Evidence(
            name="processor clock", value=self.now.sm or 0.0, unit="MHz", limit=self.healthy.sm
        )


def decodes_on_gpu(case: Case) -> bool:
    """Say whether a GPU of this machine that is seen here serves the request."""
    return case.server.local is not False and bool(case.device.gpus) and not runs_on_cpu(case)


def is_laptop(case: Case, gpu: GpuFacts) -> bool:
    """Say whether the machine is a laptop, whose GPU's limits move with the rest's load."""
    return case.device.on_battery is not None or bool(_LAPTOP.search(gpu.name or ""))


def serving(case: Case, phase: Phase) -> dict[int, tuple[GpuSample, ...]]:
    """Return the samples of a phase of the GPUs that took part in it.

    Raises:
        Missing: there are none.
    """
    gpus = gpus_during(case, phase)
    if len(gpus) == 1 or case.server.gpu_indices:
        return gpus
    busy = {i: found for i, found in gpus.items() if _busy(found) >= IDLE_BUSY_RATIO}
    return busy or gpus


def loss(case: Case, concerns: Concerns) -> ClockLoss | None:
    """Return what lower clocks cost in the samples that `concerns` picks, in the worse phase.

    None where they cost next to nothing, or do not explain how slow the phase was.

    Raises:
        Missing: the clocks are not known, or, where they are low, what decode should give.
    """
    found = [_loss(case, phase, concerns) for phase in looked_at(case)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.lost_s, default=None)


def looked_at(case: Case) -> tuple[Phase, ...]:
    """Return the phases that were long enough to look at."""
    phases: tuple[Phase, ...] = ("decode", "prefill")
    long = {p: w for p in phases if (w := case.window(p)) and w[1] - w[0] >= MIN_LOOK_S}
    return tuple(p for p in long if p == "decode" or case.gpu_during(p))


def healthy(case: Case, gpu: GpuFacts, samples: Sequence[GpuSample]) -> Clocks:
    """Return what this GPU reaches under load: its own best, else the card's highest allows."""
    past = case.history if len(case.server.gpu_indices or case.device.gpus or ()) == 1 else None
    sm = _high(samples, lambda s: s.sm_clock_mhz)
    memory = _high(samples, lambda s: s.memory_clock_mhz)
    sm_past = past and past.best_sm_clock_mhz
    memory_past = past and past.best_memory_clock_mhz
    sm_card = None if gpu.max_sm_clock_mhz is None else SM_OF_MAX_RATIO * gpu.max_sm_clock_mhz
    memory_card = gpu.max_memory_clock_mhz and MEMORY_OF_MAX_RATIO * gpu.max_memory_clock_mhz
    return Clocks(
        sm=_most(sm, sm_past or sm_card),
        memory=_most(memory, memory_past or memory_card),
        own=sm_past is not None or memory_past is not None,
    )


def slower(now: Clocks, good: Clocks, phase: Phase) -> float | None:
    """Return how many times longer the work takes at these clocks; None where none is known."""
    sm, memory = _ratio(good.sm, now.sm), _ratio(good.memory, now.memory)
    if sm is None and memory is None:
        return None
    share = SM_SHARE[phase]
    return (1 - share) * (memory or 1.0) + share * (sm or 1.0)


def observed_slowdown(case: Case, phase: Phase) -> float:
    """Return how many times longer a phase took than expected; 1 where it was not slow.

    Raises:
        Missing: it is not known what decode should give.
    """
    if phase == "decode":
        need(case.envelope.expected_tps, "decode rate expected of this GPU")
        judged = judge_decode(case)
        return slowdown(case, judged.lost_s, phase) if judged.slow else 1.0
    band, expected = case.envelope.prefill, case.envelope.expected_prefill_tps
    rate = case.phases.prefill_tps
    if band is None or not expected or not rate or rate >= band.low:
        return 1.0
    return expected / rate


def explained_ratio(case: Case, phase: Phase, lost_s: float) -> float:
    """Return which share of how slow a phase was (log) such a loss explains; 0 if it was not."""
    observed = math.log(observed_slowdown(case, phase))
    return 0.0 if observed <= 0 else min(math.log(slowdown(case, lost_s, phase)) / observed, 1.0)


def since(case: Case, found: ClockLoss, concerns: Concerns) -> str:
    """Return " from token N on" where the rate fell as it began, else nothing."""
    step = step_of(case) if found.phase == "decode" else None
    if step is None or step.after_tps >= step.before_tps:
        return ""
    before = [s for s in found.samples if s.at_s < step.at_s]
    after = [s for s in found.samples if s.at_s >= step.at_s]
    shift = _share(after, concerns) - _share(before, concerns)
    return f" from token {step.token} on" if shift >= MIN_SHIFT_RATIO else ""


def _loss(case: Case, phase: Phase, concerns: Concerns) -> ClockLoss | None:
    gpus = serving(case, phase)
    ratios: dict[int, float] = {}
    for index, samples in gpus.items():
        good = healthy(case, facts_of(case, index), samples)
        ratio = _lost_ratio(samples, good, phase, concerns)
        if ratio is not None:
            ratios[index] = ratio
    need(ratios or None, "clocks of the GPU")
    # layers on several GPUs take turns; in tensor parallel all wait for the slowest
    whole = max if is_tensor_parallel(case.server) else statistics.fmean
    ratio = whole(list(ratios.values()))
    if ratio < MIN_LOST_RATIO:
        return None
    lost_s = ratio * need(_duration_s(case, phase), f"{phase} time")
    if explained_ratio(case, phase, lost_s) < MIN_EXPLAINED_RATIO:
        return None
    index = max(ratios, key=lambda index: ratios[index])
    gpu, samples = facts_of(case, index), gpus[index]
    return ClockLoss(
        phase=phase,
        lost_s=lost_s,
        observed=observed_slowdown(case, phase),
        gpu=gpu,
        samples=samples,
        now=_medians([s for s in samples if concerns(s)]),
        healthy=healthy(case, gpu, samples),
    )


def _lost_ratio(
    samples: Sequence[GpuSample], good: Clocks, phase: Phase, concerns: Concerns
) -> float | None:
    """Return the share of the time that was lost: what was done would have taken 1 / slower."""
    lost = []
    for sample in samples:
        times = slower(_clocks_of(sample), good, phase)
        if times is not None:
            lost.append(1 - 1 / times if concerns(sample) else 0.0)
    return statistics.fmean(lost) if lost else None


def _clocks_of(sample: GpuSample) -> Clocks:
    return Clocks(sm=sample.sm_clock_mhz, memory=sample.memory_clock_mhz)


def _medians(samples: Sequence[GpuSample]) -> Clocks:
    return Clocks(
        sm=median(samples, lambda s: s.sm_clock_mhz),
        memory=median(samples, lambda s: s.memory_clock_mhz),
    )


def _high(samples: Sequence[GpuSample], read: Callable[[GpuSample], float | None]) -> float | None:
    """Return what one sample in ten reaches: a throttle that begins later leaves it there."""
    values = sorted(value for s in samples if (value := read(s)) is not None)
    return values[int(0.9 * (len(values) - 1))] if values else None


def _most(*clocks: float | None) -> float | None:
    return max((clock for clock in clocks if clock is not None), default=None)


def _ratio(good: float | None, now: float | None) -> float | None:
    return max(good / now, 1.0) if good and now else None


def _below(now: float | None, good: float | None) -> float:
    return _ratio(good, now) or 1.0


def _busy(samples: Sequence[GpuSample]) -> float:
    found = median(samples, lambda s: s.busy_ratio)
    return 1.0 if found is None else found


def _share(samples: Sequence[GpuSample], concerns: Concerns) -> float:
    return sum(1 for s in samples if concerns(s)) / len(samples) if samples else 0.0


def _duration_s(case: Case, phase: Phase) -> float | None:
    return case.phases.decode_s if phase == "decode" else case.phases.prefill_s
