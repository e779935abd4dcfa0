"""Draws measured / predicted of GPUs left out, by kind of GPU, as an SVG for the documentation."""

import math
from pathlib import Path

from fit.folds import HeldOut
from fit.output import ROOT

CHART: Path = ROOT / "docs" / "envelope-residuals.svg"
LEFT, TOP, ROW, WIDTH = 130, 24, 22, 520
LEAST, MOST = 0.4, 2.0
TICKS = (0.5, 0.7, 1.0, 1.4, 2.0)
TEXT = 'font-family="sans-serif" font-size="12" fill="#777"'


def write_chart(held: HeldOut) -> None:
    """Replace the drawing: one line of dots for each kind, one dot for each row."""
    kinds = sorted({row.spec.kind for row in held.rows})
    height = TOP + ROW * len(kinds) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}">'
    ]
    bottom = TOP + ROW * len(kinds)
    for tick in TICKS:
        x = _x(tick)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 6}" y2="{bottom}" stroke="#ccc"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" {TEXT}>{tick:g}</text>')
    parts.append(f'<text x="{LEFT}" y="14" {TEXT}>measured / predicted, GPU left out</text>')
    for line, kind in enumerate(kinds):
        y = TOP + ROW * line + ROW // 2
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end" {TEXT}>{kind}</text>')
        parts += [
            f'<circle cx="{_x(math.exp(left))}" cy="{y}" r="3" fill="#36c" fill-opacity="0.35"/>'
            for row, left in zip(held.rows, held.residuals["GPU"], strict=True)
            if row.spec.kind == kind
        ]
    CHART.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _x(ratio: float) -> float:
    inside = min(max(ratio, LEAST), MOST)
    return round(LEFT + WIDTH * math.log(inside / LEAST) / math.log(MOST / LEAST), 1)
