"""The table of contexts and types of weights: what fits, and how fast it is there. Pure.

Each cell is a question of its own to `prospect`, with half of its context in use.
"""

from dataclasses import dataclass, replace
from typing import Any

from slowtok.detectors.expectation.prospect import Prospect, prospect
from slowtok.detectors.expectation.published import Published
from slowtok.proxy.cli.fit.answer import gib, rate
from slowtok.proxy.cli.fit.asked import Question

USUAL_CONTEXTS = (4096, 16_384, 32_768, 65_536, 131_072)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One type of weights at one context."""

    context_tokens: int
    found: Prospect

    @property
    def missing_bytes(self) -> float | None:
        """What the memory lacks for it to fit for sure; None where it fits, or is not known."""
        needed, room = self.found.footprint, self.found.room_bytes
        if needed is None or room is None or self.found.fits:
            return None
        return (needed.most_bytes or needed.least_bytes) - room


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One type of weights, at each context."""

    facts: Published
    cells: tuple[Cell, ...]

    @property
    def largest_fitting(self) -> Cell | None:
        """The longest of the contexts that fits for sure; None where none does."""
        return max(
            (cell for cell in self.cells if cell.found.fits),
            key=lambda cell: cell.context_tokens,
            default=None,
        )


def table(question: Question) -> tuple[Row, ...]:
    """Return a row for each type of weights that can be chosen: one where it is fixed."""
    contexts = contexts_of(question)
    return tuple(
        Row(facts=facts, cells=tuple(_cell(facts, tokens) for tokens in contexts))
        for facts in question.of_types
    )


def contexts_of(question: Question) -> tuple[int, ...]:
    """Return the usual contexts and the one asked for, up to what the model was trained for."""
    wanted = {*USUAL_CONTEXTS, question.asked.context or USUAL_CONTEXTS[0]}
    trained = question.trained_context_tokens
    if trained is None:
        return tuple(sorted(wanted))
    return tuple(sorted({min(tokens, trained) for tokens in wanted}))


def table_json(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """Return the rows as JSON: the type, its size, and each cell."""
    return [
        {
            "quantisation": row.facts.model.quantisation,
            "weights_gib": gib(row.facts.model.file_bytes),
            "cells": [_cell_json(cell) for cell in row.cells],
        }
        for row in rows
    ]


def _cell(facts: Published, tokens: int) -> Cell:
    half = replace(facts, context_tokens=tokens // 2)
    return Cell(context_tokens=tokens, found=prospect(half, reserved_tokens=tokens))


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "context_tokens": cell.context_tokens,
        "fits": cell.found.fits,
        "missing_gib": gib(cell.missing_bytes),
        "gpu_layers": cell.found.gpu_layers,
        "decode_tps": rate(cell.found.decode),
    }
