"""The tables of `docs/apis.md`: their rows, and what each cell's words make of a reply.

A cell is a dash (absent), words for a time between two moments that the proxy saw, `counters`,
`estimate`, or names of the reply's own fields, added or subtracted. Field names say their unit:
`_duration` is nanoseconds, `_ms` milliseconds, all else tokens.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowtok.detectors.case.case import Timeline

PAGE = Path(__file__).resolve().parents[2] / "docs" / "apis.md"
ABSENT = "-"
COLUMNS = (
    "queue", "load", "prefill", "decode", "TTFT", "prompt", "cached", "completion", "rate",
    "ended", "source",
)  # fmt: skip
GAINED_MS = {"queue": 250.0, "prefill": 125.0, "decode": 375.0}  # by the engine's counters
GAINED_CACHED_TOKENS = 3
PREFILL_TPS, DECODE_TPS = 1000.0, 50.0  # known from earlier requests, for estimates
WORDS = {  # of the engines, in those of chat completions
    "completed": "stop", "end_turn": "stop", "eos": "stop", "max_output_tokens": "length",
    "max_tokens": "length", "limit": "length",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row and one of its engines; `alone` is None where it makes no difference."""

    path: str
    engine: str
    alone: bool | None
    stream: bool
    cells: Mapping[str, str]
    recorded: bool

    def __str__(self) -> str:
        whom = {None: "", True: " alone", False: " not alone"}[self.alone]
        return f"{self.path} {self.engine}{whom} {'stream' if self.stream else 'whole'}"


def rows() -> Iterator[Row]:
    """Each row of each table, once for each of its engines."""
    path = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            path = line.removeprefix("## ").strip("`")
        if line.startswith("| ") and path.startswith("/") and not line.startswith("| engine"):
            engines, reply, *cells, bytes_ = [c.strip() for c in line.strip("|").split(" | ")]
            assert reply in ("stream", "whole"), line
            assert bytes_ in ("recorded", "made"), line
            given = dict(zip(COLUMNS, (cell.strip("`") for cell in cells), strict=True))
            for engine in engines.split(", "):
                name, _, whom = engine.rstrip(")").partition(" (")
                alone = {"": None, "alone": True, "not alone": False}[whom]
                stream = reply == "stream"
                yield Row(path, name, alone, stream, given, bytes_ == "recorded")


def time_ms(cell: str, column: str, said: list[Any], seen: Timeline) -> float:
    """Return what the words of a time make, in ms."""
    moments = {
        "request": seen.accepted_at_s,
        "sent": seen.sent_at_s,
        "head": seen.headers_at_s,
        "first token": seen.first_token_at_s,
        "last token": seen.last_token_at_s,
        "last byte": seen.last_byte_at_s,
    }
    if cell == "counters":
        return GAINED_MS[column]
    if cell == "estimate":
        return _estimate(column, seen)
    if cell == "rest":
        return _rest(said, seen)
    begin, arrow, end = cell.partition(" → ")
    if not arrow:
        return fields(cell, said)
    begin_s, end_s = moments[begin], moments[end]
    assert begin_s is not None, cell
    assert end_s is not None, cell
    return (end_s - begin_s) * 1000


def fields(cell: str, said: list[Any]) -> float:
    """Return the sum of the reply's own fields, in ms or tokens."""
    total = 0.0
    for sign, name in re.findall(r"([+-]?) ?(\w+)", cell):
        value = field(name, said)
        assert value is not None, (cell, name)
        number = value / 1e6 if name.endswith("_duration") else value
        total += -number if sign == "-" else number
    return total


def field(name: str, said: list[Any]) -> Any:
    """Return the last value that the reply gives under that name, however deep; None for none."""
    if name.isdigit():
        return int(name)
    for value in reversed(said):
        if isinstance(value, dict) and value.get(name) is not None:
            return value[name]
        inner = list(value.values()) if isinstance(value, dict) else value
        if isinstance(inner, list) and (found := field(name, inner)) is not None:
            return found
    return None


def _rest(said: list[Any], seen: Timeline) -> float:
    """What the engine's own times leave of the wait, for the first token and for the end."""
    own = {
        phase: next((fields(n, said) for n in names if _tells(n, said)), 0.0)
        for phase, names in {
            "load": ("load_duration",),
            "prefill": ("prompt_ms", "prompt_eval_duration", "total_duration - load_duration"),
            "decode": ("predicted_ms", "eval_duration"),
        }.items()
    }
    ends = [(seen.last_byte_at_s, sum(own.values()))]
    if seen.stream:
        ends.append((seen.first_token_at_s, own["load"] + own["prefill"]))
    assert seen.sent_at_s is not None
    return min(max((at_s - seen.sent_at_s) * 1000 - by, 0.0) for at_s, by in ends if at_s)


def _tells(names: str, said: list[Any]) -> bool:
    return all(field(name, said) is not None for name in re.findall(r"\w+", names))


def _estimate(column: str, seen: Timeline) -> float:
    """The whole time, divided as the usual rates are."""
    tokens = seen.tokens
    assert tokens.processed is not None
    assert tokens.completion is not None
    usual = {
        "prefill": tokens.processed / PREFILL_TPS,
        "decode": (tokens.completion - 1) / DECODE_TPS,
    }
    whole = time_ms("sent → last byte", "", [], seen)
    return whole * usual[column] / sum(usual.values())
