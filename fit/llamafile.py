"""llamafile: an engine of its own time, slower per layer, with a band of its own.

Its rows (LocalScore, 2025, submitted by users) do not say how healthy their machines were, so the
constants of the GPUs stay as they are and only its cost per layer is fitted; the band is wide.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fit.bands import EVERY_ROW_QUANTILE
from fit.model import Array, Parameters, residuals, table
from fit.rows import Row

STEP_US = 5.0
MOST_US = 400.0


def fit_llamafile(p: Parameters, rows: Sequence[Row]) -> tuple[float, float, Array]:
    """Return the cost per layer in microseconds, the low factor, and the residuals."""
    known = [row for row in rows if row.spec.kind in p.efficiency]
    t = table(known, tuple(sorted(p.efficiency)))

    def slower(extra_us: float) -> Parameters:
        return replace(p, layer_us={m: us + extra_us for m, us in p.layer_us.items()})

    steps = np.arange(0.0, MOST_US, STEP_US)
    errors = [float(np.median(np.abs(residuals(slower(us), t)))) for us in steps]
    best = float(steps[int(np.argmin(errors))])
    left = residuals(slower(best), t)
    low = math.floor(100 * float(np.exp(np.quantile(left, EVERY_ROW_QUANTILE)))) / 100
    return best, low, left
