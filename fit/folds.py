"""Predictions for GPUs, sources and models that the model was not fitted on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fit.model import Array, Table, fit, residuals, table
from fit.rows import Row

FOLDS: dict[str, Callable[[Row], str]] = {
    "GPU": lambda row: row.gpu,
    "source": lambda row: row.source,
    "model": lambda row: row.model,
}
KNOCK_OUTS = (
    "bytes of weights", "bandwidth", "KV bytes", "cost per layer", "kinds of GPU",
    "cost of experts", "age of the build",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Rows, and log(measured / predicted) of each by a fit without the fold that it is in."""

    rows: Sequence[Row]
    table: Table
    residuals: Mapping[str, Array]

    def values(self, fold: str) -> NDArray[np.str_]:
        """Return the name of the fold of each row."""
        return np.array([FOLDS[fold](row) for row in self.rows])


def kinds_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the kinds of GPU among the rows, sorted."""
    return tuple(sorted({row.spec.kind for row in rows}))


def unified_of(rows: Sequence[Row]) -> frozenset[str]:
    """Return the kinds whose memory is shared with the CPU."""
    return frozenset(row.spec.kind for row in rows if row.spec.unified)


def hold_out(fitted: Sequence[Row], rows: Sequence[Row]) -> HeldOut:
    """Predict `rows` from the rows of `fitted` that are in other folds."""
    t = table(rows, kinds_of(fitted))
    left = {fold: residuals_out(fitted, table(fitted, t.kinds), rows, t, fold) for fold in FOLDS}
    return HeldOut(rows=rows, table=t, residuals=left)


def residuals_out(
    fitted: Sequence[Row], fitted_table: Table, rows: Sequence[Row], t: Table, fold: str
) -> Array:
    """Return log(measured / predicted) of `rows`, each by a fit without its own fold."""
    unified = unified_of(fitted)
    fitted_values = np.array([FOLDS[fold](row) for row in fitted])
    values = np.array([FOLDS[fold](row) for row in rows])
    found = np.empty(len(rows))
    for value in np.unique(values):
        p = fit(fitted_table.part(fitted_values != value), unified=unified)
        found[values == value] = residuals(p, t.part(values == value))
    return found


def by_setup(rows: Sequence[Row]) -> Array:
    """Return log(measured / predicted), predicted from one other row of the same setup.

    A setup is source, GPU, model and quantisation: what one healthy request of the same machine
    and model teaches about the next. Rows without a sibling are left out.
    """
    t = table(rows, kinds_of(rows))
    found = residuals(fit(t, unified=unified_of(rows)), t)
    setups = [(row.source, row.gpu, row.model, row.quant) for row in rows]
    first = {setup: index for index, setup in reversed(list(enumerate(setups)))}
    return np.array(
        [found[i] - found[first[setup]] for i, setup in enumerate(setups) if first[setup] != i]
    )


def without(t: Table, feature: str) -> Table:
    """Return the table with one thing ignored, to see what it is worth.

    Raises:
        KeyError: there is no such thing.
    """
    zero, one = np.zeros_like(t.kv), np.ones_like(t.kv)
    none = np.zeros_like(t.kind)
    ignored: dict[str, dict[str, object]] = {
        "KV bytes": {"kv": zero},
        "cost per layer": {"layers": zero},
        "cost of experts": {"moe": zero},
        "age of the build": {"old": zero},
        "bandwidth": {"bandwidth": one * np.median(t.bandwidth)},
        "bytes of weights": {"weights": one * np.median(t.weights)},
        "kinds of GPU": {"kinds": ("any",), "kind": none, "maker": none},
    }
    return replace(t, **ignored[feature])  # type: ignore[arg-type]
