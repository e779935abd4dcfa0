"""Several machines side by side for one model: which fit, to which context, how fast. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slowtok.detectors.case.finding import number
from slowtok.proxy.cli.fit.asked import AskError, FitOptions
from slowtok.proxy.cli.fit.layout import cell_text, gib_text
from slowtok.proxy.cli.fit.outlook import Outlook, outlook_json
from slowtok.proxy.cli.fit.table import Cell
from slowtok.proxy.cli.render.console import plain

MAX_MACHINES = 20


def others(asked: FitOptions, named: Iterable[str]) -> list[FitOptions]:
    """Return the same question for each of the GPUs named, separated by commas or given apart.

    What describes the first machine alone (`--gpus`, `--vram`, `--bandwidth`) is not taken along.

    Raises:
        AskError: a name is empty, or there are too many.
    """
    names = [name.strip() for text in named for name in text.split(",")]
    if not all(names):
        raise AskError("--compare: expected the name of a GPU, like 'RTX 4090' or '2 x RTX 3090'")
    if len(names) >= MAX_MACHINES:
        raise AskError(f"--compare: {len(names)} GPUs named: at most {MAX_MACHINES - 1}")
    return [_on(asked, name) for name in names]


def _on(asked: FitOptions, name: str) -> FitOptions:
    return replace(asked, gpu=name, gpus=None, vram=None, bandwidth=None)


def side_by_side(answers: list[Outlook]) -> RenderableType:
    """Return a row for each machine, and what the columns mean."""
    first = answers[0].question
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("Machine", overflow="fold", header_style="bold underline")
    for name in ("GiB", "up to", "tokens/s", "low", "high"):
        grid.add_column(name, justify="right", no_wrap=True)
    for answer in answers:
        decode = answer.found.decode
        edges = ("?" if edge is None else number(edge) for edge in (decode.low, decode.high))
        grid.add_row(
            plain(answer.question.machine),
            gib_text(answer.found.room_bytes),
            _most(answer),
            cell_text(Cell(context_tokens=first.context_tokens, found=answer.found)),
            *edges,
        )
    legend = (
        f"GiB: the memory that the model may have. Up to: tokens of context that fit for sure. "
        f"Tokens/s: expected with {first.facts.context_tokens:,} of {first.context_tokens:,} "
        "tokens in use. ? fits by the low estimate of memory, not by the high one. -3.2: 3.2 GiB "
        "are missing; low and high then assume that some layers run from RAM."
    )
    return Group(Text(plain(first.model_title), "bold"), Text(), grid, Text(), Text(legend, "dim"))


def side_by_side_json(answers: list[Outlook]) -> dict[str, Any]:
    """Return the first answer, as without others, with the others' under `compare`."""
    first, *rest = (outlook_json(answer) for answer in answers)
    return {**first, "compare": rest}


def _most(answer: Outlook) -> str:
    most = answer.most_context_tokens
    return "?" if most is None else f"{most:,}" if most else "-"
