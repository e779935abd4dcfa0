"""Another process computed on the same GPU, so the server had only a part of its time.

Signal:
The GPU is busy all the time, and other processes' kernels ran on it for at least 10 % of the time.
The driver lets them take turns: two processes that need all of it get half each. The rate steps
when the other process starts or ends, not with the tokens; clocks and power look healthy.

Not to be confused with:
- `batch-shared`: the other work is another request of the same server.
- A desktop's own drawing takes up to 5 %.
- `vram-held-by-others`: the other process holds memory but computes nothing.
- Utilisation alone says nothing: a full GPU looks the same, no matter which process fills it.
- A slice of a GPU (MIG) has its own processors: what runs in another slice takes nothing from it.

Remedy:
Pause the other process, limit it (the frames per second of a game), or give it another GPU.

Sources:
- pytorch/pytorch#14531 (two equal processes: 5 to 10 ms per image, half of the time each).
- tensorflow/tensorflow#11022 (170 to 330 s next to a second training).
- CPI2 (Zhang et al., EuroSys 2013): blame the neighbour whose use goes with the slowness.
"""

from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.clock_loss import looked_at
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu, serving_samples
from slowtok.detectors.analysis.gpu.gpu_share import (
    MIN_OTHERS_RATIO,
    Sharing,
    follows,
    own_time,
    runs_mps,
    sharing_of,
)
from slowtok.detectors.analysis.gpu.gpu_window import gpu_facts, without_first_second
from slowtok.detectors.analysis.phase_loss import nearest_loss_s, prefill_excess_s
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Evidence, Finding, Missing, Traits, need, weigh
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.case.named_facts import label
from slowtok.detectors.expectation.memory import is_tensor_parallel

TITLE = "Another process computed on the GPU"
TRAITS = Traits(requires="gpu", persistent=True)

MIN_PHASE_S = 2.0
"""Utilisation is a mean over up to a second: less time than this says nothing about it."""

MIN_LOOK_S = 0.9
"""The driver tells each process's share once a second: fewer than two of them say nothing."""

MIN_FULL_RATIO = 0.9
"""Heuristic: on a GPU that idles at times, nobody waits for a turn."""


def detect(case: Case) -> Finding | None:
    """Fire when others had a part of a full GPU's time, in the phase and on the GPU that lost most.

    A prefill has to be slow for that: others may compute beside one that is as quick as ever.
    """
    if not decodes_on_gpu(case):
        return None
    phases = [p for p in looked_at(case) if p == "decode" or prefill_excess_s(case) > 0]
    found: list[_Taken] = []
    unknown: Missing | None = None
    for phase in phases:  # a short one may not tell, beside a long one that does
        try:
            found += [taken for taken in (_worst(case, phase),) if taken is not None]
        except Missing as missing:
            unknown = unknown or missing
    if not found and unknown is not None:
        raise unknown
    worst = max(found, key=lambda taken: taken.lost_s, default=None)
    return None if worst is None else _finding(case, worst)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What others took of a phase, on the GPU where that was most."""

    phase: Phase
    lost_s: float
    shared: Sharing


def _worst(case: Case, phase: Phase) -> _Taken | None:
    taken_s = need(
        case.phases.decode_s if phase == "decode" else case.phases.prefill_s, f"{phase} time"
    )
    if taken_s < MIN_PHASE_S:
        return None
    gpus = {i: without_first_second(found) for i, found in serving_samples(case, phase).items()}
    candidates = {i: found for i, found in gpus.items() if not _is_alone(case, i, found)}
    if not candidates:
        return None
    shared = [sharing_of(i, found) for i, found in candidates.items()]
    known = [s for s in shared if s is not None and _look_s(s) >= MIN_LOOK_S]
    worst = max(need(known or None, "GPU time of each process"), key=lambda s: s.taken_ratio)
    if worst.taken_ratio < MIN_OTHERS_RATIO:
        return None
    if is_tensor_parallel(case.server) or len(gpus) == 1:
        return _Taken(phase=phase, lost_s=taken_s * worst.taken_ratio, shared=worst)
    # Layers take turns. Of the others' time, what fell into the server's turn on that GPU was lost:
    # no more than the time in which none of the GPUs computed for the server.
    least_s = taken_s * worst.taken_ratio / len(gpus)
    if phase == "decode":
        waited_ratio = min(1 - own_time(gpus), worst.taken_ratio)
        least_s = nearest_loss_s(case, least_s, max(taken_s * waited_ratio, least_s))
    return _Taken(phase=phase, lost_s=least_s, shared=worst)


def _is_alone(case: Case, index: int, samples: tuple[GpuSample, ...]) -> bool:
    """Return True if nobody can have taken time from the server on this GPU, or nobody waited."""
    if gpu_facts(case, index).partition_of:
        return True
    busy = [s.busy_ratio for s in samples if s.busy_ratio is not None]
    if busy and max(busy) < MIN_FULL_RATIO:
        return True
    listed = [s.processes for s in samples if s.processes is not None]
    return bool(listed) and all(p.is_server for processes in listed for p in processes)


def _look_s(shared: Sharing) -> float:
    return shared.samples[-1].at_s - shared.samples[0].at_s


def _finding(case: Case, taken: _Taken) -> Finding:
    shared = taken.shared
    name = label(gpu_facts(case, shared.index))
    return Finding(
        phase=taken.phase,
        confidence=_confidence(case, taken),
        lost_s=taken.lost_s,
        summary=(
            f"{_culprit(shared)} computed on {name} at the same time and had "
            f"{100 * shared.taken_ratio:.0f} % of its time, which the server had to wait for; "
            f"{taken.phase} lost about {{lost}}."
        ),
        remedy=(
            f"Pause or stop {_who(shared)} while requests run; or limit it (a game's frames per "
            "second, a training's batch), or give one of the two another GPU "
            "(CUDA_VISIBLE_DEVICES)."
        ),
        evidence=(
            Evidence(
                name="GPU time of other processes",
                value=100 * shared.others_ratio,
                unit="%",
                limit=100 * MIN_OTHERS_RATIO,
            ),
            Evidence(name="GPU time of the server", value=100 * shared.own_ratio, unit="%"),
            Evidence(name="GPU busy", value=100 * shared.busy_ratio, unit="%"),
        ),
    )


def _confidence(case: Case, taken: _Taken) -> float:
    """Two readings agree; that the rate goes with the other's use is a third. No turns in MPS."""
    shared = taken.shared
    goes_with = follows(case, shared) if taken.phase == "decode" else None
    against = (goes_with is False) + runs_mps(shared.samples)
    if goes_with:
        return weigh("gauge", "gauge", "counter", against=against)
    return weigh("gauge", "gauge", against=against)


def _culprit(shared: Sharing) -> str:
    return "Another process" if shared.pid is None else f"Another process, {_who(shared)},"


def _who(shared: Sharing) -> str:
    if shared.pid is None:
        return "another process"
    name = (shared.name or "a process").encode("ascii", "replace").decode()
    return f"{name} (pid {shared.pid})"
