"""The GPU's power limit was set so low that its clocks fell.

Signal:
The driver gives power as the reason for lower clocks in most samples (the power bit), power is at
its limit, and the limit is below 0.9 of the card's default (or of what the card drew before). The
processors' clock is below 0.9 of the healthy one, and the rate is at least 10 % below what is
expected, which the clocks explain. Where clocks are not reported, the limit bounds them, because
power falls at least as fast as the clock.

Not to be confused with:
- A healthy card shows the power bit, too: it is set in 97 % of the samples of cards that lose
  nothing.
- `thermal-throttle`, `hardware-slowdown`: other bits are set. Samples with those bits do not count
  here.
- `low-power-mode`: a laptop's limit moves with its power source, so its default means nothing.
- `clocks-stuck`: no bit is set, and power is far below the limit.

Remedy:
Raise the limit to the default, or keep it and accept its cost: decode waits for the memory and
loses little down to some limit, while prefill computes and loses at once.

Sources:
- noonghunna/club-3090 docs/HARDWARE.md (RTX 3090, 388 to 230 W: -34 %; RTX 4090, 450 to 260 W:
  -7 %; RTX 5090, 575 to 400 W: equal) and its issue 698 (3090: 97 % of samples capped, no loss).
- ashalliants/ninfer-3090#72 (capped at 315 W in each sample, nothing lost).
- nvml.h (0x4: software power cap; 0x200: board limit).
- `slowtok.detectors.analysis.gpu.clocks`: what lower clocks cost.
"""

from dataclasses import dataclass, replace

from slowtok.detectors.analysis.gpu.clock_loss import (
    CLOCKS,
    MIN_EXPLAINED_RATIO,
    ClockLoss,
    explained_ratio,
    is_laptop,
    is_present,
    loss,
    loss_without_clocks,
    since,
)
from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import (
    gained_ratio,
    median,
    most,
    share_with_bits,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import BRAKE_BITS, POWER_BITS, THERMAL_BITS
from slowtok.detectors.case.finding import (
    UNNAMED,
    Evidence,
    EvidenceKind,
    Finding,
    Missing,
    Traits,
    need,
    weigh,
)
from slowtok.detectors.case.machine import GpuSample

TITLE = "Power limit set low"
TRAITS = Traits(requires="gpu", persistent=True)

MIN_CAPPED_RATIO = 0.5
MAX_CLOCK_RATIO = 0.9
MIN_SLOWDOWN = 1.1
"""Heuristic."""

AT_LIMIT_RATIO = 0.9
"""A limit that binds is drawn: 314 of 315 W (ninfer-3090#72), 229.7 of 230 W (club-3090)."""

# A GPU's power limit: whether it is lower than usual, and the most that this can cost.
#
# A limit takes clocks away, and power falls at least as fast as the clock: with its square or
# cube while the voltage falls as well, in proportion where it cannot. So a rate falls no further
# than the limit (an RTX 3090 at 230 of 388 W: to 0.66, not to 0.59; noonghunna/club-3090
# docs/HARDWARE.md).

MAX_LIMIT_RATIO = 0.9
"""Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoweredLimit:
    """A limit in watts and what it was usually; `own`: this very card was seen to draw that."""

    limit_w: float
    usual_w: float
    own: bool


def detect(case: Case) -> Finding | None:
    """Fire when a lowered power limit lowered the clocks and that explains the loss."""
    if not decodes_on_gpu(case):
        return None
    found = _held_back(case)
    if found is None or found.observed < MIN_SLOWDOWN or found.gpu.vendor == "apple":
        return UNNAMED if is_present(case, POWER_BITS) else None
    if (found.said and found.sm_ratio >= MAX_CLOCK_RATIO) or not _binds(found):
        return UNNAMED if is_present(case, POWER_BITS) else None
    lowered = _lowered_limit(case, found)
    if lowered is not None and not found.said:
        found = _bounded(found, lowered)
        if explained_ratio(case, found.phase, found.lost_s) < MIN_EXPLAINED_RATIO:
            return UNNAMED
    return UNNAMED if lowered is None else _finding(case, found, lowered)


def _held_back(case: Case) -> ClockLoss | None:
    try:
        return loss(case, _is_capped)
    except Missing as missing:
        if missing.fact != CLOCKS:
            raise
        return loss_without_clocks(case)


def _is_capped(sample: GpuSample) -> bool:
    mask = sample.reasons
    return mask is None or (bool(mask & POWER_BITS) and not mask & (THERMAL_BITS | BRAKE_BITS))


def _binds(found: ClockLoss) -> bool:
    """Return True if the limit held the card back most of the time, and was drawn."""
    capped = _capped_ratio(found)
    if capped is None and found.gpu.vendor != "amd":
        need(capped, "reasons for lower clocks")
    drawn = found.drawn_ratio
    if capped is None:
        return need(drawn, "power of the GPU") >= AT_LIMIT_RATIO
    return capped >= MIN_CAPPED_RATIO and (drawn is None or drawn >= AT_LIMIT_RATIO)


def _capped_ratio(found: ClockLoss) -> float | None:
    counted = gained_ratio(found.samples, lambda s: s.throttled_power_ns)
    return share_with_bits(found.samples, POWER_BITS) if counted is None else counted


def _finding(case: Case, found: ClockLoss, lowered: _LoweredLimit) -> Finding:
    limit, usual, own = lowered.limit_w, lowered.usual_w, lowered.own
    proof: tuple[EvidenceKind, ...] = ("gauge", "gauge", "gauge") if own else ("gauge", "gauge")
    share = _capped_ratio(found)
    evidence = [
        Evidence(name="power limit", value=limit, unit="W", limit=MAX_LIMIT_RATIO * usual),
        found.evidence if found.said else found.effect,
    ]
    if share is not None:
        name = "time at the power limit"
        evidence.append(
            Evidence(name=name, value=100 * share, unit="%", limit=100 * MIN_CAPPED_RATIO)
        )
    return Finding(
        phase=found.phase,
        confidence=weigh(*proof),
        lost_s=found.lost_s,
        summary=(
            f"The power of {found.name} is limited to {limit:.0f} W"
            f"{since(case, found, _is_capped)} ({'it drew' if own else 'its default is'} "
            f"{usual:.0f} W{' before' if own else ''}), so "
            f"{'it runs its ' if found.said else 'its clocks fall'}{found.said}; "
            f"{found.phase} lost about {{lost}}."
        ),
        remedy=_remedy(found, limit, usual),
        evidence=tuple(evidence),
    )


def _remedy(found: ClockLoss, limit: float, usual: float) -> str:
    cost = 100 * (1 - 1 / found.observed)
    return (
        f"Raise the limit ({found.set_limit(usual)}; it holds until the next boot) if power supply "
        f"and cooling allow it; if not, this is the cost of {limit:.0f} W: {found.phase} was "
        f"{cost:.0f} % slower than expected."
    )


def _lowered_limit(case: Case, found: ClockLoss) -> _LoweredLimit | None:
    """Return the limit in force if it is lowered; a laptop's default means nothing.

    Raises:
        Missing: the limit or the card's default is not known.
    """
    limit = need(median(found.samples, lambda s: s.power_limit_w), "power limit in force")
    highest = most(found.samples, lambda s: s.power_limit_w) or limit
    drew = case.history.best_power_w if len(case.device.gpus or ()) == 1 else None
    own = max(highest, drew or 0.0)
    if limit < MAX_LIMIT_RATIO * own:
        return _LoweredLimit(limit_w=limit, usual_w=own, own=True)
    if is_laptop(case, found.gpu):
        return None
    default = need(found.gpu.default_power_limit_w, "default power limit of the GPU")
    if limit >= MAX_LIMIT_RATIO * default:
        return None
    return _LoweredLimit(limit_w=limit, usual_w=default, own=False)


def _bounded(found: ClockLoss, lowered: _LoweredLimit) -> ClockLoss:
    """Return the loss, and no more of it than if the clock had fallen as far as the limit."""
    most_s = found.duration_s * (1 - lowered.limit_w / lowered.usual_w)
    return replace(found, lost_s=min(found.lost_s, most_s))
