"""GPUs whose kind was not measured: how far off the fit is where a whole kind is left out.

The middle is the efficiency that all other kinds with such memory have in common. The band is that
of rows of every kind, predicted without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.bands import EVERY_ROW_QUANTILE
from fit.folds import kinds_of, unified_of
from fit.model import Array, Parameters, fit, residuals, table
from fit.rows import Row
from fit.serving import quantile
from slowtok.config.efficiency import DecodeConstants

OWN, UNIFIED = "own", "unified"
HIGH_QUANTILE = 1 - EVERY_ROW_QUANTILE
# Chosen, not fitted: there are seven kinds to leave out. Instinct, of which no row is here, reaches
# 0.56 of the mean efficiency, and a virtual GPU less than its card.
MAX_LOW_RATIO, LEAST_HIGH_RATIO = 0.50, 1.40


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericFit:
    """What was found for one kind of memory; `left` is log(measured / predicted)."""

    constants: DecodeConstants
    left: Array
    kinds: int


def fit_generic(rows: Sequence[Row]) -> dict[str, GenericFit]:
    """Return the constants for memory of the GPU's own and for unified memory."""
    whole = fit(table(rows, kinds_of(rows)), unified=unified_of(rows))
    return {name: _fit(rows, whole, unified=name == UNIFIED) for name in (OWN, UNIFIED)}


def _fit(rows: Sequence[Row], whole: Parameters, *, unified: bool) -> GenericFit:
    mine = [row for row in rows if row.spec.unified == unified]
    kinds = np.array([row.spec.kind for row in mine])
    left = np.empty(len(mine))
    for kind in np.unique(kinds):
        others = [row for row in rows if row.spec.kind != kind]
        p = fit(table(others, kinds_of(others)), unified=unified_of(others))
        ratio = _middle(p, others, unified=unified)
        guessed = replace(p, efficiency={**p.efficiency, str(kind): ratio})
        chosen = kinds == kind
        held = [row for row in mine if row.spec.kind == kind]
        left[chosen] = residuals(guessed, table(held, tuple(guessed.efficiency)))
    each = np.array([1 / (kinds == kind).sum() for kind in kinds])
    low, high = (quantile(left, each, share) for share in (EVERY_ROW_QUANTILE, HIGH_QUANTILE))
    return GenericFit(
        constants=DecodeConstants(
            efficiency_ratio=round(_middle(whole, rows, unified=unified), 3),
            low_ratio=min(math.floor(100 * math.exp(low)) / 100, MAX_LOW_RATIO),
            high_ratio=max(math.ceil(100 * math.exp(high)) / 100, LEAST_HIGH_RATIO),
        ),
        left=left,
        kinds=len(np.unique(kinds)),
    )


def _middle(p: Parameters, rows: Sequence[Row], *, unified: bool) -> float:
    """Return the geometric mean of the efficiencies of the kinds with such memory."""
    kinds = {row.spec.kind for row in rows if row.spec.unified == unified}
    return float(np.exp(np.mean([math.log(p.efficiency[kind]) for kind in sorted(kinds)])))
