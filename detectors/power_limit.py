"""A GPU's power limit: whether it is lower than usual, and the most that this can cost.

A limit takes clocks away, and power falls at least as fast as the clock: with its square or cube
while the voltage falls as well, in proportion where it cannot. So a rate falls no further than the
limit (an RTX 3090 at 230 of 388 W: to 0.66, not to 0.59; noonghunna/club-3090 docs/HARDWARE.md).
"""

from dataclasses import dataclass, replace

from slowtok.detectors.case import Case
from slowtok.detectors.clock_loss import ClockLoss, is_laptop
from slowtok.detectors.finding import need
from slowtok.detectors.gpu_window import median, most

MAX_LIMIT_RATIO = 0.9
"""Proposed, no published source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A limit in watts and what it was usually; `own`: this very card was seen to draw that."""

    limit_w: float
    usual_w: float
    own: bool


def lowered_limit(case: Case, found: ClockLoss) -> Lowered | None:
    """Return the limit in force if it is lowered; a laptop's default means nothing.

    Raises:
        Missing: the limit or the card's default is not known.
    """
    limit = need(median(found.samples, lambda s: s.power_limit_w), "power limit in force")
    highest = most(found.samples, lambda s: s.power_limit_w) or limit
    drew = case.history.best_power_w if len(case.device.gpus or ()) == 1 else None
    own = max(highest, drew or 0.0)
    if limit < MAX_LIMIT_RATIO * own:
        return Lowered(limit_w=limit, usual_w=own, own=True)
    if is_laptop(case, found.gpu):
        return None
    default = need(found.gpu.default_power_limit_w, "default power limit of the GPU")
    if limit >= MAX_LIMIT_RATIO * default:
        return None
    return Lowered(limit_w=limit, usual_w=default, own=False)


def bounded(found: ClockLoss, lowered: Lowered) -> ClockLoss:
    """Return the loss, and no more of it than if the clock had fallen as far as the limit."""
    most_s = found.duration_s * (1 - lowered.limit_w / lowered.usual_w)
    return replace(found, lost_s=min(found.lost_s, most_s))
