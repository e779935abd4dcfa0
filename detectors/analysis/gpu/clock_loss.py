"""The cost of lower clocks to one request, where it explains how slow that was.

A lower clock is no cause by itself: cards at their power limit or in P2 lose nothing. It counts
only in a phase that was slow, and only if the rule of `clocks` explains at least half of how slow
it was (in logarithms, as `diagnose` counts).
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.clocks import (
    MAX_SM_OF_MAX_RATIO,
    MAX_SM_SHARE,
    MEMORY_ALONE,
    SM_OF_MAX_RATIO,
    SM_SHARE,
    Clocks,
    Concerns,
    SmShare,
    clocks_of,
    healthy,
    lost_ratio,
    median_clocks,
    serving_samples,
    slower,
)
from slowtok.detectors.analysis.gpu.gpu_window import (
    by_gpu,
    gpu_facts,
    median,
    share_with_bits,
    without_first_second,
)
from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.analysis.phase_loss import expected_decode_tps, judge_decode, slowdown
from slowtok.detectors.analysis.rate_shape import step_of
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.clocks_event import IDLE_BIT
from slowtok.detectors.case.finding import Evidence, need
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.case.memo import cached_for_last_case, cached_for_last_case_by_args
from slowtok.detectors.case.named_facts import label
from slowtok.detectors.expectation.memory import is_tensor_parallel

CLOCKS = "clocks of the GPU"

MIN_LOOK_S = 2.0
"""A shorter phase gives no evidence: the first second of utilization and power is of before."""

MIN_LOST_RATIO = 0.05
MIN_EXPLAINED_RATIO = 0.5
MIN_SHIFT_RATIO = 0.3
MIN_PRESENT_RATIO = 0.1
"""Of a phase: from here on a state is told as present, not as ruled out. Heuristic."""

MIN_CERTAIN = math.log(1.1)
"""A certain slowdown of less than a tenth counts as a tenth: half of less could not be told from
noise. Heuristic."""

MIN_SLOWER = 1.1
"""A change of rate is the throttle's where samples that it made slower by a tenth are this much
more frequent after than before. MIN_LOST_RATIO, MIN_EXPLAINED_RATIO, MIN_SHIFT_RATIO and this are
heuristic."""

STARVED_BUSY_RATIO = 0.6
MAX_IDLE_RATIO = 0.1
"""Heuristic: beside layers on the CPU a GPU is 15 to 40 % busy
(ollama/ollama#3301, ggml-org/llama.cpp#17880)."""

_LAPTOP = re.compile(r"\b(laptop|max-q|mobile)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLoss:
    """What lower clocks cost in one phase, with the GPU that lost most: its clocks and samples.

    `observed` is how many times longer than expected the phase took.
    """

    phase: Phase
    lost_s: float
    duration_s: float
    observed: float
    gpu: GpuFacts
    samples: tuple[GpuSample, ...]
    now: Clocks
    healthy: Clocks

    @property
    def measured_s(self) -> float:
        """What was lost in this phase, whatever the clocks explain of it."""
        return self.duration_s * (1 - 1 / self.observed)

    @property
    def sm_ratio(self) -> float:
        """The processors' clock as a share of the healthy one; 1 where not known."""
        return min(self.now.sm / self.healthy.sm, 1.0) if self.now.sm and self.healthy.sm else 1.0

    @property
    def memory_ratio(self) -> float:
        """The memory's clock as a share of the healthy one; 1 where not known."""
        now, good = self.now.memory, self.healthy.memory
        return min(now / good, 1.0) if now and good else 1.0

    @property
    def drawn_ratio(self) -> float | None:
        """Power drawn as a share of its limit."""
        known = [
            s
            for s in without_first_second(self.samples)
            if s.power_w is not None and s.power_limit_w
        ]
        return median(known, lambda s: (s.power_w or 0.0) / (s.power_limit_w or 1.0))

    @property
    def is_starved(self) -> bool:
        """Return True if the GPU had too little to do: then low clocks are an effect."""
        samples = without_first_second(self.samples)
        busy = median(samples, lambda s: s.busy_ratio)
        idle = share_with_bits(samples, IDLE_BIT)
        return (busy is not None and busy < STARVED_BUSY_RATIO) or (idle or 0) > MAX_IDLE_RATIO

    @property
    def name(self) -> str:
        """The GPU's number and name."""
        return label(self.gpu)

    @property
    def said(self) -> str:
        """The clocks that are lower, in words."""
        return " and ".join(
            f"{what} at {now:,.0f} instead of about {good:,.0f} MHz"
            for what, now, good in (
                ("processors", self.now.sm, self.healthy.sm),
                ("memory", self.now.memory, self.healthy.memory),
            )
            if now is not None and good is not None and now < good
        )

    @property
    def evidence(self) -> Evidence:
        """The clock that is further below its healthy value."""
        what, now, good = (
            ("memory", self.now.memory, self.healthy.memory)
            if self.memory_ratio < self.sm_ratio
            else ("processor", self.now.sm, self.healthy.sm)
        )
        return Evidence(name=f"{what} clock", value=now or 0.0, unit="MHz", limit=good)

    @property
    def effect(self) -> Evidence:
        """How much slower than expected the phase was."""
        return Evidence(name="times slower", value=self.observed, unit="times", limit=1)

    def set_limit(self, watts: float) -> str:
        """Return the command that sets the GPU's power limit, within what it allows."""
        return set_limit(self.gpu, watts)


def set_limit(gpu: GpuFacts, watts: float) -> str:
    """Return its maker's command that sets a GPU's power limit, within what it allows."""
    least, most = gpu.min_power_limit_w or 0.0, gpu.max_power_limit_w or watts
    watts = min(max(watts, least), most)
    if gpu.vendor == "amd":
        return f"sudo rocm-smi -d {gpu.index} --setpoweroverdrive {watts:.0f}"
    return f"sudo nvidia-smi -i {gpu.index} -pl {watts:.0f}"


def unlock_clocks(gpu: GpuFacts) -> str | None:
    """Return its maker's command that removes locks of a GPU's clocks; None where there is none."""
    if gpu.vendor == "apple":
        return None
    if gpu.vendor == "amd":
        return f"sudo rocm-smi -d {gpu.index} --setperflevel auto"
    return f"sudo nvidia-smi -i {gpu.index} -rgc; sudo nvidia-smi -i {gpu.index} -rmc"


def is_laptop(case: Case, gpu: GpuFacts) -> bool:
    """Return True if the machine is a laptop, whose GPU's limits move with the rest's load."""
    return case.device.on_battery is not None or bool(_LAPTOP.search(gpu.name or ""))


def loss(case: Case, concerns: Concerns, *, is_told: bool = True) -> ClockLoss | None:
    """Return what lower clocks cost in the samples that `concerns` picks, in the worse phase.

    None where they cost next to nothing, or do not explain how slow the phase was. It is what the
    phase lost, up to the most that they may cost; where nobody tells why they are low (not
    `is_told`), at least what they usually cost, and held against the least that is healthy.

    Raises:
        Missing: the clocks are not known, or, where they are low, what decode should give.
    """
    found = [_loss(case, phase, concerns, is_told=is_told) for phase in looked_at(case)]
    known = [one for one in found if one is not None]
    return max(known, key=lambda one: one.lost_s, default=None)


def loss_without_clocks(case: Case) -> ClockLoss | None:
    """Return all that decode lost, where clocks are not told; None where it was not slow.

    Raises:
        Missing: as `loss`.
    """
    gpus, observed = serving_samples(case, "decode"), observed_slowdown(case, "decode")
    if observed <= 1.0:
        return None
    index, samples = next(iter(gpus.items()))
    unknown = Clocks(sm=None, memory=None)
    return ClockLoss(
        phase="decode",
        lost_s=decode_s(case) * (1 - 1 / observed),
        duration_s=decode_s(case),
        observed=observed,
        gpu=gpu_facts(case, index),
        samples=samples,
        now=unknown,
        healthy=unknown,
    )


def is_present(case: Case, bits: int) -> bool:
    """Return True if reason bits stood for a tenth of a phase.

    That is a state without measurable cost where `loss` finds none: it is not ruled out.
    """
    for phase in ("decode", "prefill"):
        for samples in by_gpu(case.gpu_during(phase)).values():
            if (share_with_bits(samples, bits) or 0.0) >= MIN_PRESENT_RATIO:
                return True
    return False


@cached_for_last_case
def looked_at(case: Case) -> tuple[Phase, ...]:
    """Return the phases that were long enough to look at."""
    phases: tuple[Phase, ...] = ("decode", "prefill")
    long = {p: w for p in phases if (w := case.window(p)) and w[1] - w[0] >= MIN_LOOK_S}
    return tuple(p for p in long if p == "decode" or case.gpu_during(p))


def observed_slowdown(case: Case, phase: Phase) -> float:
    """Return how many times longer a phase took than expected; 1 where it was not slow.

    Raises:
        Missing: it is not known what decode should give, or what it gave.
    """
    if phase == "decode":
        decode_tps(case), decode_s(case)
        judged = judge_decode(case)
        if judged.slow is None:
            need(expected_decode_tps(case), "decode rate expected of this GPU")
        return slowdown(case, judged.lost_s, phase) if judged.slow else 1.0
    band, expected = case.envelope.prefill, case.envelope.expected_prefill_tps
    rate = case.phases.prefill_tps
    if band is None or not expected or not rate or rate >= band.low:
        return 1.0
    return expected / rate


def explained_ratio(case: Case, phase: Phase, lost_s: float) -> float:
    """Return which share of how slow a phase was (log) such a loss explains; 0 if it was not.

    Of a decode counts what is certain: a cause that brings it back to the edge explains enough.
    """
    observed = math.log(observed_slowdown(case, phase))
    if phase == "decode" and observed > 0:
        certain = math.log(slowdown(case, judge_decode(case).least_lost_s, phase))
        observed = max(certain, MIN_CERTAIN)
    return 0.0 if observed <= 0 else min(math.log(slowdown(case, lost_s, phase)) / observed, 1.0)


def since(case: Case, found: ClockLoss, concerns: Concerns) -> str:
    """Return " from token N on" where the rate fell as it began, else nothing."""
    step = step_of(case) if found.phase == "decode" else None
    if step is None or step.after_tps >= step.before_tps:
        return ""
    before = [s for s in found.samples if s.at_s < step.at_s]
    after = [s for s in found.samples if s.at_s >= step.at_s]
    shift = _share(after, found, concerns) - _share(before, found, concerns)
    return f" from token {step.token} on" if shift >= MIN_SHIFT_RATIO else ""


def _loss(case: Case, phase: Phase, concerns: Concerns, *, is_told: bool) -> ClockLoss | None:
    if _most_lost(case, phase) < MIN_LOST_RATIO:
        return None
    gpus, ratios = serving_samples(case, phase), _lost_ratios(case, phase, concerns)
    if _whole(case, ratios) < MIN_LOST_RATIO:
        return None
    duration_s = need(_duration_s(case, phase), f"{phase} time")
    measured_s = duration_s * (1 - 1 / observed_slowdown(case, phase))
    most_s = _most_ratio(case, phase, concerns, gpus, is_told=is_told) * duration_s
    least_s = 0.0 if is_told else _least_ratio(case, phase, concerns, gpus) * duration_s
    lost_s = min(max(measured_s, least_s), max(most_s, least_s))
    if explained_ratio(case, phase, lost_s) < MIN_EXPLAINED_RATIO:
        return None
    index = max(ratios, key=lambda index: ratios[index])
    gpu, samples = gpu_facts(case, index), gpus[index]
    return ClockLoss(
        phase=phase,
        lost_s=lost_s,
        duration_s=duration_s,
        observed=observed_slowdown(case, phase),
        gpu=gpu,
        samples=samples,
        now=median_clocks([s for s in samples if concerns(s)]),
        healthy=healthy(case, gpu, samples),
    )


@cached_for_last_case_by_args
def _most_lost(case: Case, phase: Phase) -> float:
    """Return the share of the time that lower clocks took, whatever lowered them.

    Raises:
        Missing: the clocks are not known.
    """
    return _whole(case, need(_lost_ratios(case, phase, lambda _: True) or None, CLOCKS))


def _lost_ratios(case: Case, phase: Phase, concerns: Concerns) -> dict[int, float]:
    """Return the share of the time that lower clocks took on each GPU that tells them."""
    ratios: dict[int, float] = {}
    for index, samples in serving_samples(case, phase).items():
        good = healthy(case, gpu_facts(case, index), samples)
        ratio = lost_ratio(samples, good, phase, concerns)
        if ratio is not None:
            ratios[index] = ratio
    return ratios


def _least_ratio(
    case: Case, phase: Phase, concerns: Concerns, gpus: Mapping[int, tuple[GpuSample, ...]]
) -> float:
    """Return the least that the clocks cost where the rule holds, as a share of the time."""
    shares = (SM_SHARE, MAX_SM_SHARE)
    return _bound(case, phase, concerns, gpus, sm_of_max=SM_OF_MAX_RATIO, pick=min, shares=shares)


def _most_ratio(
    case: Case,
    phase: Phase,
    concerns: Concerns,
    gpus: Mapping[int, tuple[GpuSample, ...]],
    *,
    is_told: bool,
) -> float:
    """Return the most that the clocks may have cost, as a share of the time."""
    sm_of_max = MAX_SM_OF_MAX_RATIO if is_told else SM_OF_MAX_RATIO
    shares = (MEMORY_ALONE, MAX_SM_SHARE)
    return _bound(case, phase, concerns, gpus, sm_of_max=sm_of_max, pick=max, shares=shares)


def _bound(
    case: Case,
    phase: Phase,
    concerns: Concerns,
    gpus: Mapping[int, tuple[GpuSample, ...]],
    *,
    sm_of_max: float,
    pick: Callable[[list[float]], float],
    shares: Sequence[SmShare],
) -> float:
    ratios = {}
    for index, samples in gpus.items():
        good = healthy(case, gpu_facts(case, index), samples, sm_of_max)
        found = [lost_ratio(samples, good, phase, concerns, share) or 0.0 for share in shares]
        ratios[index] = pick(found)
    return _whole(case, ratios)


def _whole(case: Case, ratios: Mapping[int, float]) -> float:
    """Layers on several GPUs take turns; in tensor parallel all wait for the slowest."""
    together = max if is_tensor_parallel(case.server) else statistics.fmean
    return together(list(ratios.values()))


def _share(samples: Sequence[GpuSample], found: ClockLoss, concerns: Concerns) -> float:
    """Return the share of the samples that the cause made slower."""
    times = [slower(clocks_of(s), found.healthy, found.phase) for s in samples if concerns(s)]
    return sum(1 for t in times if t and t >= MIN_SLOWER) / len(samples) if samples else 0.0


def _duration_s(case: Case, phase: Phase) -> float | None:
    return case.phases.decode_s if phase == "decode" else case.phases.prefill_s
