"""The GPU's own protection cut its clocks: its power supply was too weak, or told it to brake.

Signal:
The power-brake counter grew by 100 ms or more, or the brake bit (0x80) is set, or the slowdown bit
(0x8) is set in three samples in a row without the heat bit (0x40). The clocks fall to a half or
less at once, with power far below its limit, often as other GPUs draw their peaks.

Not to be confused with:
- A single sample with 0x8 means nothing: the bit comes with each change of performance state.
- `thermal-throttle`: 0x40 is set, too.
- `power-cap`: 0x4 is set, and power is at the limit.
- `clocks-stuck`: no bit is set at all.

Remedy:
Check the power plugs first. Then try a lower power limit, which takes the peaks away, and after
that a stronger power supply. In servers, check the power budget of the chassis, too.

Sources:
- nvml.h (0x8: clocks cut by 2 or more for heat, brake or a fast trigger, or for a moment in a
  change of state; 0x80: brake asserted from outside, for example by the power supply).
- leptonai/gpud#330: what constant hardware slowdowns often come from.
- `slowtok.detectors.analysis.gpu.clocks`: what lower clocks cost.
"""

from collections.abc import Sequence

from slowtok.detectors.analysis.gpu.clock_loss import ClockLoss, is_laptop, is_present, loss, since
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import (
    gained,
    share_with_bits,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import BRAKE_BITS, HOT_BIT, SLOWDOWN_BIT
from slowtok.detectors.case.finding import (
    UNNAMED,
    Evidence,
    EvidenceKind,
    Finding,
    Traits,
    need,
    weigh,
)
from slowtok.detectors.case.machine import GpuSample

TITLE = "GPU braked by its power supply"
TRAITS = Traits(requires="gpu")

MIN_BRAKE_S = 0.1
"""Heuristic."""

MIN_SAMPLES = 3
"""In a row, 0.3 s: a change of performance state is over by then. Heuristic."""

FAR_BELOW_RATIO = 0.8
"""Power this far below its limit shows that the limit is not the reason. Heuristic."""

LOWER_LIMIT_RATIO = 0.8
"""Takes the peaks away; an RTX 3090 at 290 of 370 W decodes 7 % slower (noonghunna/club-3090)."""


def detect(case: Case) -> Finding | None:
    """Fire when the brake cut the clocks and that explains the loss."""
    if not decodes_on_gpu(case):
        return None
    found = loss(case, _is_braked)
    if found is None:
        return UNNAMED if is_present(case, BRAKE_BITS) else None
    if found.gpu.vendor == "apple":  # part of the processor: nothing to brake it
        return None
    brake_s = _brake_s(found.samples)
    if brake_s is None:
        need(share_with_bits(found.samples, SLOWDOWN_BIT), "reasons for lower clocks")
    counted = brake_s is not None and brake_s >= MIN_BRAKE_S
    in_a_row = _longest_run(found.samples)
    if not counted and in_a_row < MIN_SAMPLES:
        return None
    return _finding(case, found, brake_s if counted else None, in_a_row)


def _is_braked(sample: GpuSample) -> bool:
    mask = sample.reasons
    return mask is None or (bool(mask & (BRAKE_BITS | SLOWDOWN_BIT)) and not mask & HOT_BIT)


def _brake_s(samples: Sequence[GpuSample]) -> float | None:
    total_ns = gained(samples, lambda s: s.throttled_power_brake_ns)
    return None if total_ns is None else total_ns / 1e9


def _longest_run(samples: Sequence[GpuSample]) -> int:
    longest = run = 0
    for sample in samples:
        run = run + 1 if sample.reasons is not None and _is_braked(sample) else 0
        longest = max(longest, run)
    return longest


def _finding(case: Case, found: ClockLoss, brake_s: float | None, in_a_row: int) -> Finding:
    drawn = found.drawn_ratio
    proof: list[EvidenceKind] = ["gauge"]
    if brake_s is not None:
        proof.append("counter")
    if drawn is not None and drawn <= FAR_BELOW_RATIO:
        proof.append("gauge")
    evidence = [found.evidence, found.effect]
    if brake_s is not None:
        evidence.append(Evidence(name="time braked", value=brake_s, unit="s", limit=MIN_BRAKE_S))
    else:
        evidence.append(
            Evidence(name="samples in a row", value=in_a_row, unit="samples", limit=MIN_SAMPLES)
        )
    if drawn is not None:
        evidence.append(Evidence(name="power of its limit", value=100 * drawn, unit="%"))
    held = f"for {brake_s:.1f} s" if brake_s is not None else "again and again"
    return Finding(
        phase=found.phase,
        confidence=weigh(*proof),
        lost_s=found.lost_s,
        summary=(
            f"The hardware's own protection slowed {found.name} down {held}"
            f"{since(case, found, _is_braked)}, not because of heat: {found.said}; the usual "
            f"reason is the power supply, and {found.phase} lost about {{lost}}."
        ),
        remedy=_remedy(case, found),
        evidence=tuple(evidence),
        proof_s=min(brake_s or 0.0, found.lost_s),
    )


def _remedy(case: Case, found: ClockLoss) -> str:
    limit = found.gpu.default_power_limit_w
    if is_laptop(case, found.gpu):
        return "Use the adapter that came with the laptop, plugged in directly, and not a dock."
    lower = ""
    if limit is not None:
        command = found.set_limit(LOWER_LIMIT_RATIO * limit)
        lower = f" try a lower power limit ({command});"
    return (
        f"Push in the GPU's power plugs firmly and give each its own cable from the supply;{lower} "
        f"if the GPU is still slowed down, the power supply is too weak or failing (in a server, "
        f"check the chassis' power budget)."
    )
