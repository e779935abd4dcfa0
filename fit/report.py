"""The tables that `make fit` prints and docs/envelope.md shows."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from fit.bands import (
    GDDR,
    SLOWDOWNS,
    above_high_edge,
    covered,
    detected,
    detected_by_setup,
    groups_of,
    widths,
)
from fit.folds import FOLDS, KNOCK_OUTS, HeldOut, kinds_of, residuals_out, without
from fit.generic import GenericFit
from fit.llamafile import LlamafileFit
from fit.model import Array, Parameters, residuals, table
from fit.outside import of_outside
from fit.rows import Row
from fit.serving import GROUPS, ServingFit, group_of

Edges = Mapping[str, tuple[float, float]]


def of_data(rows: Sequence[Row], collapsed: Sequence[Row], out: Counter[str]) -> str:
    """Say what was fitted on, and what was left out."""
    gpus, sources = {r.gpu for r in rows}, {r.source for r in rows}
    counted = f"{len(rows)} rows of {len(gpus)} GPUs, {len(sources)} sources"
    models = len({r.model for r in rows})
    lines = [f"{counted} and {models} models, collapsed to {len(collapsed)}. Left out:", ""]
    lines += [f"- {count} x {reason}" for reason, count in out.most_common()]
    return "\n".join(lines)


def of_residuals(p: Parameters, collapsed: HeldOut, every: HeldOut, found: Edges) -> str:
    """Show measured / predicted in the sample and held out."""
    head = ("rows", "", "n", "median", "median error", "p5-p95", "in band", "high/low", "> 0.93")
    lines = _head(head)
    for name, held in (("collapsed", collapsed), ("every row", every)):
        inside = residuals(p, held.table)
        lines.append(_line(name, "in sample", len(inside), *_spread(inside), "", "", ""))
        for fold in FOLDS:
            chosen = np.ones(len(held.rows), dtype=bool)
            lines.append(_held_line(name, fold, held, collapsed, every, found, chosen))
        for group in sorted(found):
            chosen = groups_of(held.rows) == group
            title = f"{name}, {group}"
            lines.append(_held_line(title, "GPU", held, collapsed, every, found, chosen))
    return "\n".join(lines)


def of_detection(collapsed: HeldOut, found: Edges) -> str:
    """Show which share of rows is flagged when every run is slowed; x1 are false alarms."""
    lines = _head(("", *(f"x{slowdown:g}" for slowdown in SLOWDOWNS)))
    gddr = groups_of(collapsed.rows) == GDDR
    for name, chosen in (("GPU never seen", gddr | True), (f"the same, {GDDR}", gddr)):
        shares = [detected(collapsed, found, "GPU", s)[chosen].mean() for s in SLOWDOWNS]
        lines.append(_line(name, *(f"{share:.1%}" for share in shares)))
    shares = [detected_by_setup(collapsed.rows, s).mean() for s in SLOWDOWNS]
    lines.append(_line("after one row of the same setup", *(f"{share:.1%}" for share in shares)))
    return "\n".join(lines)


def of_knock_outs(rows: Sequence[Row], base: Array) -> str:
    """Show what each part of the formula is worth: the error without it, GPU left out."""
    lines = _head(("left out of the formula", "rms of the logarithm", "median error"))
    lines.append(_line("nothing", f"{_rms(base):.3f}", f"{_median_error(base):.1%}"))
    t = table(rows, kinds_of(rows))
    for feature in KNOCK_OUTS:
        poorer = without(t, feature)
        left = residuals_out(rows, poorer, rows, poorer, "GPU")
        lines.append(_line(feature, f"{_rms(left):.3f}", f"{_median_error(left):.1%}"))
    return "\n".join(lines)


def of_kinds(held: HeldOut) -> str:
    """Show measured / predicted by kind of GPU, GPU left out."""
    lines = _head(("kind", "rows", "GPUs", "median", "median error", "p5-p95"))
    kinds = np.array([row.spec.kind for row in held.rows])
    for kind in np.unique(kinds):
        chosen = kinds == kind
        gpus = {row.gpu for row, mine in zip(held.rows, chosen, strict=True) if mine}
        left = held.residuals["GPU"][chosen]
        lines.append(_line(str(kind), len(left), len(gpus), *_spread(left)))
    return "\n".join(lines)


def of_llamafile(found: Mapping[str, LlamafileFit]) -> str:
    """Show how the engine with constants of its own fares, in the sample."""
    head = ("llamafile", "rows", "us more per layer", "band", "median", "median error")
    lines = _head((*head, "p5-p95"))
    for maker, own in found.items():
        c = own.constants
        band = f"{c.low_ratio:.2f}-{c.high_ratio:.2f}"
        cells = (maker, len(own.left), f"{c.layer_s * 1e6:.0f}", band, *_spread(own.left))
        lines.append(_line(*cells))
    return "\n".join(lines)


def of_engines(found: ServingFit, out: Counter[str]) -> str:
    """Show engines that serve batches, at one stream: by memory, and by how many GPUs share it."""
    sources = {row.source for row in found.rows}
    gpus = {row.gpu for row in found.rows}
    counted = f"{len(found.rows)} rows of {len(gpus)} GPUs and {len(sources)} sources"
    reasons = ", ".join(f"{count} x {reason}" for reason, count in out.most_common())
    head = ("serving engines", "", "rows", "median", "median error", "p5-p95", "band", "in band")
    lines = [f"Engines that serve batches: {counted}. Left out: {reasons}.", "", *_head(head)]
    for title, left in found.left.items():
        for group in GROUPS:
            chosen = np.array([group_of(row) == group for row in found.rows])
            low, high = found.band(group)
            measured = np.exp(left[chosen])
            inside = ((measured >= low) & (measured <= high)).mean()
            name = f"{group[0]}, {'several GPUs' if group[1] else 'one GPU'}"
            cells = (*_spread(left[chosen]), f"{low:.2f}-{high:.2f}", f"{inside:.1%}")
            lines.append(_line(name, title, chosen.sum(), *cells))
    return "\n".join(lines)


def of_generic(found: Mapping[str, GenericFit]) -> str:
    """Show what happens where the kind of GPU is not known: each kind left out."""
    head = ("kind not known", "rows", "kinds", "band", "median", "median error", "p5-p95")
    lines = _head(head)
    for memory, generic in found.items():
        c = generic.constants
        band = f"{c.low_ratio:.2f}-{c.high_ratio:.2f}"
        title = "unified memory" if memory == "unified" else "memory of its own"
        cells = (title, len(generic.left), generic.kinds, band, *_spread(generic.left))
        lines.append(_line(*cells))
    return "\n".join(lines)


def of_others(raw: Sequence[dict[str, str]], engines: Sequence[dict[str, str]]) -> str:
    """Show how the answers of `slowtok fit` fare on every row, with the constants in force."""
    head = ("every row", "rows", "with a band", "in it", "below", "above", "median error")
    lines = _head((*head, "high/low", "above the ceiling"))
    return "\n".join([*lines, *(_line(*cells) for cells in of_outside([*raw, *engines]))])


def _held_line(
    name: str,
    fold: str,
    held: HeldOut,
    collapsed: HeldOut,
    every: HeldOut,
    found: Edges,
    chosen: np.ndarray,
) -> str:
    left = held.residuals[fold][chosen]
    inside = covered(held, collapsed, every, fold)[chosen]
    return _line(
        name,
        f"{fold} left out",
        len(left),
        *_spread(left),
        f"{inside.mean():.1%}",
        f"{np.median(widths(held, found, fold)[chosen]):.2f}",
        f"{above_high_edge(held.rows)[chosen].mean():.1%}",
    )


def _spread(left: Array) -> tuple[str, str, str]:
    low, middle, high = np.exp(np.quantile(left, [0.05, 0.5, 0.95]))
    return f"{middle:.2f}", f"{_median_error(left):.1%}", f"{low:.2f}-{high:.2f}"


def _median_error(left: Array) -> float:
    return math.exp(float(np.median(np.abs(left)))) - 1


def _rms(left: Array) -> float:
    return float(np.sqrt(np.mean(left**2)))


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(*titles), "|" + "---|" * len(titles)]


def _line(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
