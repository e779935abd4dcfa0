"""llamafile: an engine of its own time, slower per layer, with a band of its own by maker.

Its rows (LocalScore, 2025, submitted by users) do not say how healthy their machines were, so the
constants of the GPUs stay as they are and only its cost per layer is fitted; the band is wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.model import MAKERS, Array, Parameters, residuals, table
from fit.rows import Row
from slowtok.config.efficiency import LlamafileConstants

STEP_US = 5.0
LEAST_QUANTILE = 0.04
MAX_QUANTILE = 0.995  # the band is wide anyway, and no run above it is slow
MAX_US = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamafileFit:
    """What was found on the GPUs of one maker; `left` is log(measured / predicted)."""

    constants: LlamafileConstants
    left: Array


def fit_llamafile(p: Parameters, rows: Sequence[Row]) -> dict[str, LlamafileFit]:
    """Return the cost per layer and the low factor for each maker."""
    known = [row for row in rows if row.spec.kind in p.efficiency]
    return {maker: _fit(p, [r for r in known if r.spec.maker == maker]) for maker in MAKERS}


def _fit(p: Parameters, rows: Sequence[Row]) -> LlamafileFit:
    t = table(rows, tuple(sorted(p.efficiency)))

    def left(extra_us: float) -> Array:
        slower = {maker: us + extra_us for maker, us in p.layer_us.items()}
        return residuals(replace(p, layer_us=slower), t)

    steps = np.arange(0.0, MAX_US, STEP_US)
    best = float(steps[int(np.argmin([np.median(np.abs(left(us))) for us in steps]))])
    low, high = np.exp(np.quantile(left(best), [LEAST_QUANTILE, MAX_QUANTILE]))
    own = LlamafileConstants(
        layer_s=best * 1e-6,
        low_ratio=math.floor(100 * low) / 100,
        high_ratio=math.ceil(100 * high) / 100,
    )
    return LlamafileFit(constants=own, left=left(best))
