"""The band: where it begins and ends, and which rows it holds.

The rule: kinds of GPU whose residuals are alike share two factors. The low one is the lower of two
quantiles of measured / predicted on GPUs and on sources that were left out, rounded down to two
digits: `LOW_QUANTILE` of the collapsed rows, `EVERY_ROW_QUANTILE` of every single row (which holds
each engine's poor kernels many times over). It is never above `MAX_LOW_RATIO`: single rows that
were left out lie lower than the quantiles of their neighbours. The high one is the upper quantile
of the collapsed rows, rounded up, and never below `LEAST_HIGH_RATIO`; `GPU_HIGH_RATIO` of the
ceiling bounds it.

Coverage is checked with the factors taken from the other GPUs (or sources, or models) alone, so
that no row helps to choose the edges that it is held against.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fit.folds import HeldOut, by_setup
from fit.model import Array
from fit.rows import Row
from slowtok.detectors.expectation.memory import GPU_HIGH_RATIO

Mask = NDArray[np.bool_]

LOW_QUANTILE = 0.025
EVERY_ROW_QUANTILE = 0.05
HIGH_QUANTILE = 0.975
# Chosen, not fitted: with these a band is about twice as high as low (GDDR 1.8, others 2.2), so
# that a rate of half the expected one lies below it, and single rows of a GPU that was left out are
# held in 95 of 100.
GDDR, APPLE, UNIFIED, OTHERS = "NVIDIA with GDDR", "Apple", "unified memory", "others"
MAX_LOW_RATIO = {GDDR: 0.70, APPLE: 0.62, UNIFIED: 0.62, OTHERS: 0.60}
LEAST_HIGH_RATIO = {GDDR: 1.25, APPLE: 1.40, UNIFIED: 1.40, OTHERS: 1.40}
ANCHORED_LOW_RATIO = 0.80
SLOWDOWNS = (1.0, 1.25, 1.5, 2.0, 3.0)


def group_of(kind: str, *, unified: bool) -> str:
    """Return the group that shares a low factor."""
    if kind in {"nvidia-ada", "nvidia-ampere"}:
        return GDDR
    if kind.startswith("apple"):
        return APPLE
    return UNIFIED if unified else OTHERS


def groups_of(rows: Sequence[Row]) -> NDArray[np.str_]:
    """Return the group of each row."""
    return np.array([group_of(row.spec.kind, unified=row.spec.unified) for row in rows])


def edges(collapsed: HeldOut, every: HeldOut) -> dict[str, tuple[float, float]]:
    """Return the low and the high factor of each group by the rule."""
    everywhere = [np.ones(len(held.rows), dtype=bool) for held in (collapsed, every)]
    return {
        str(group): _edges(group, collapsed, every, everywhere)
        for group in np.unique(groups_of(collapsed.rows))
    }


def covered(held: HeldOut, collapsed: HeldOut, every: HeldOut, fold: str) -> Mask:
    """Say for each row whether its band held it, the factors taken from the other folds."""
    groups, values = groups_of(held.rows), held.values(fold)
    low, high = np.empty(len(held.rows)), np.empty(len(held.rows))
    for value in np.unique(values):
        others = [h.values(fold) != value for h in (collapsed, every)]
        for group in np.unique(groups[values == value]):
            chosen = (values == value) & (groups == group)
            low[chosen], high[chosen] = _edges(group, collapsed, every, others)
    measured = np.exp(held.residuals[fold])
    inside: Mask = (measured >= low) & (measured <= high)
    return inside & ~above_high_edge(held.rows)


def above_high_edge(rows: Sequence[Row]) -> Mask:
    """Say for each row whether it lies above the high edge, and so on the way to the ceiling."""
    return np.array([row.tps > GPU_HIGH_RATIO * row.ceiling_tps for row in rows])


def widths(held: HeldOut, found: Mapping[str, tuple[float, float]], fold: str) -> Array:
    """Return high / low of each row's band."""
    predicted = np.exp(held.table.log_tps - held.residuals[fold])
    bound = np.array([GPU_HIGH_RATIO * row.ceiling_tps for row in held.rows])
    low, high = (
        predicted * np.array([found[group][edge] for group in groups_of(held.rows)])
        for edge in (0, 1)
    )
    return np.asarray(np.minimum(high, bound) / low, dtype=np.float64)


def detected(
    held: HeldOut, found: Mapping[str, tuple[float, float]], fold: str, slowdown: float
) -> Mask:
    """Say for each row whether it would be below its band if it were slower by the factor."""
    lows = np.array([found[group][0] for group in groups_of(held.rows)])
    below: Mask = np.exp(held.residuals[fold]) / slowdown < lows
    return below


def detected_by_setup(rows: Sequence[Row], slowdown: float) -> Mask:
    """The same, with the prediction scaled by one healthy row of the same setup."""
    below: Mask = np.exp(by_setup(rows)) / slowdown < ANCHORED_LOW_RATIO
    return below


def _edges(
    group: str, collapsed: HeldOut, every: HeldOut, allowed: Sequence[Mask]
) -> tuple[float, float]:
    """Return the factors of a group from the allowed rows; of all groups where it has none."""

    def quantile(held: HeldOut, mask: Mask, share: float) -> float:
        chosen = mask & (groups_of(held.rows) == group)
        chosen = chosen if chosen.any() else mask
        pooled = np.concatenate([held.residuals[fold][chosen] for fold in ("GPU", "source")])
        return float(np.exp(np.quantile(pooled, share)))

    low = min(
        quantile(collapsed, allowed[0], LOW_QUANTILE),
        quantile(every, allowed[1], EVERY_ROW_QUANTILE),
        MAX_LOW_RATIO[group],
    )
    high = max(quantile(collapsed, allowed[0], HIGH_QUANTILE), LEAST_HIGH_RATIO[group])
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100
