"""Where the band begins, and what it holds.

The rule: kinds of GPU whose residuals are alike share one factor; it is the lower of two quantiles
of measured / predicted on GPUs and on sources that were left out, rounded down to two digits:
`LOW_QUANTILE` of the collapsed rows, `EVERY_ROW_QUANTILE` of every single row (which holds each
engine's poor kernels many times over). It is never above `MOST_LOW_RATIO`: single rows that were
left out lie lower than the quantiles of their neighbours. The high edge is `GPU_HIGH_RATIO` of the
ceiling.

Coverage is checked with the factor taken from the other GPUs (or sources, or models) alone, so that
no row helps to choose the edge that it is held against.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fit.folds import HeldOut, by_setup
from fit.model import Array
from fit.rows import Row
from slowtok.detectors.envelope_memory import GPU_HIGH_RATIO

Mask = NDArray[np.bool_]

LOW_QUANTILE = 0.025
EVERY_ROW_QUANTILE = 0.05
# Chosen, not fitted: with these a band is about twice as high as low (GDDR 1.9, unified 2.2), so
# that a rate of half the expected one lies below it, and single rows of a GPU that was left out are
# held in 95 of 100.
MOST_LOW_RATIO = {"NVIDIA with GDDR": 0.71, "others": 0.60, "unified memory": 0.62}
ANCHORED_LOW_RATIO = 0.80
SLOWDOWNS = (1.0, 1.25, 1.5, 2.0, 3.0)
GDDR = "NVIDIA with GDDR"


def group_of(kind: str, *, unified: bool) -> str:
    """Return the group that shares a low factor."""
    if kind in {"nvidia-ada", "nvidia-ampere"}:
        return GDDR
    return "unified memory" if unified else "others"


def groups_of(rows: Sequence[Row]) -> NDArray[np.str_]:
    """Return the group of each row."""
    return np.array([group_of(row.spec.kind, unified=row.spec.unified) for row in rows])


def low_ratios(collapsed: HeldOut, every: HeldOut) -> dict[str, float]:
    """Return the low factor of each group by the rule."""
    everywhere = [np.ones(len(held.rows), dtype=bool) for held in (collapsed, every)]
    return {
        str(group): math.floor(100 * _edge(group, collapsed, every, everywhere)) / 100
        for group in np.unique(groups_of(collapsed.rows))
    }


def covered(held: HeldOut, collapsed: HeldOut, every: HeldOut, fold: str) -> Mask:
    """Say for each row whether its band held it, the low factor taken from the other folds."""
    groups, values = groups_of(held.rows), held.values(fold)
    low = np.empty(len(held.rows))
    for value in np.unique(values):
        others = [h.values(fold) != value for h in (collapsed, every)]
        for group in np.unique(groups[values == value]):
            edge = _edge(group, collapsed, every, others)
            low[(values == value) & (groups == group)] = edge
    above: Mask = np.exp(held.residuals[fold]) >= low
    return above & ~above_high_edge(held.rows)


def above_high_edge(rows: Sequence[Row]) -> Mask:
    """Say for each row whether it lies above the high edge, and so on the way to the ceiling."""
    return np.array([row.tps > GPU_HIGH_RATIO * row.ceiling_tps for row in rows])


def widths(held: HeldOut, low: Mapping[str, float], fold: str) -> Array:
    """Return high / low of each row's band."""
    predicted = np.exp(held.table.log_tps - held.residuals[fold])
    high = np.array([GPU_HIGH_RATIO * row.ceiling_tps for row in held.rows])
    return np.asarray(high / (_lows(held, low) * predicted), dtype=np.float64)


def detected(held: HeldOut, low: Mapping[str, float], fold: str, slowdown: float) -> Mask:
    """Say for each row whether it would be below its band if it were slower by the factor."""
    below: Mask = np.exp(held.residuals[fold]) / slowdown < _lows(held, low)
    return below


def detected_by_setup(rows: Sequence[Row], slowdown: float) -> Mask:
    """The same, with the prediction scaled by one healthy row of the same setup."""
    below: Mask = np.exp(by_setup(rows)) / slowdown < ANCHORED_LOW_RATIO
    return below


def _lows(held: HeldOut, low: Mapping[str, float]) -> Array:
    return np.array([low[group] for group in groups_of(held.rows)])


def _edge(group: str, collapsed: HeldOut, every: HeldOut, allowed: Sequence[Mask]) -> float:
    """Return the low factor of a group from the allowed rows; of all groups where it has none."""
    edges = []
    for held, mask, quantile in zip(
        (collapsed, every), allowed, (LOW_QUANTILE, EVERY_ROW_QUANTILE), strict=True
    ):
        chosen = mask & (groups_of(held.rows) == group)
        chosen = chosen if chosen.any() else mask
        pooled = np.concatenate([held.residuals[fold][chosen] for fold in ("GPU", "source")])
        edges.append(float(np.exp(np.quantile(pooled, quantile))))
    return min(*edges, MOST_LOW_RATIO[group])
