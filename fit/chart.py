"""Draws measured / predicted of GPUs left out as an SVG for the documentation.

By kind of GPU, by context and by size of the weights. The same rows give the same bytes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fit.folds import HeldOut
from fit.output import ROOT
from fit.rows import Row

CHART: Path = ROOT / "docs" / "envelope-residuals.svg"
LEFT, TOP, LINE, WIDTH = 150, 24, 22, 520
LEAST, MOST = 0.4, 2.0
TICKS = (0.5, 0.7, 1.0, 1.4, 2.0)
TEXT = 'font-family="sans-serif" font-size="12" fill="#777"'
DEPTHS = (500, 2000, 8000, 32_000)
SIZES_GB = (1, 3, 6, 15)


def write_chart(held: HeldOut) -> None:
    """Replace the drawing: one line of dots for each group, one dot for each row."""
    groups = (_kind, _depth, _size)
    lines = [line for group in groups for line in (*_lines(held, group), None)][:-1]
    bottom = TOP + LINE * len(lines)
    size = f'width="{LEFT + WIDTH + 20}" height="{bottom + 30}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    for tick in TICKS:
        x = _x(tick)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{bottom}" stroke="#ccc"/>')
        parts.append(_label(x, bottom + 18, "middle", f"{tick:g}"))
    parts.append(_label(LEFT, 14, "start", "measured / predicted, GPU left out"))
    for index, line in enumerate(lines):
        y = TOP + LINE * index + LINE // 2
        if line is not None:
            title, left = line
            parts.append(_label(LEFT - 10, y + 4, "end", title))
            dots = (f'<circle cx="{_x(math.exp(value))}" cy="{y}" r="3"/>' for value in left)
            parts += ['<g fill="#36c" fill-opacity="0.35">', *dots, "</g>"]
    CHART.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _lines(
    held: HeldOut, group_of: Callable[[Row], tuple[int, str]]
) -> Iterator[tuple[str, Sequence[float]]]:
    groups: dict[tuple[int, str], list[float]] = {}
    for row, left in zip(held.rows, held.residuals["GPU"], strict=True):
        groups.setdefault(group_of(row), []).append(float(left))
    for (_, title), values in sorted(groups.items()):
        yield title, values


def _kind(row: Row) -> tuple[int, str]:
    return 0, row.spec.kind


def _depth(row: Row) -> tuple[int, str]:
    return _step(row.reads.context_tokens, DEPTHS, "tokens")


def _size(row: Row) -> tuple[int, str]:
    return _step(row.reads.weights / 1e9, SIZES_GB, "GB")


def _step(value: float, edges: Sequence[int], unit: str) -> tuple[int, str]:
    """Return which step a value is on, and what the step is called."""
    index = sum(value >= edge for edge in edges)
    if index == len(edges):
        return index, f"{edges[-1]:,} {unit} and more"
    begin = edges[index - 1] if index else 0
    return index, f"{begin:,} to {edges[index]:,} {unit}"


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" {TEXT}>{text}</text>'


def _x(ratio: float) -> float:
    inside = min(max(ratio, LEAST), MOST)
    return round(LEFT + WIDTH * math.log(inside / LEAST) / math.log(MOST / LEAST), 1)
