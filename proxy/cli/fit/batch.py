"""The setups of `slowtok fit --batch`: JSON lines in and out, one for one and at once.

A line holds options of `slowtok fit` by their names, `{"model": "qwen3:8b", "gpu": "RTX 4090"}`, or
columns of `fit/data/decode_rates.csv`, of which any may be missing. Values may be numbers or text.
A line that cannot be read gives an `error` in its place, and the rest goes on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

import orjson

from slowtok.detectors.expectation.assumed_model import Unsized
from slowtok.detectors.expectation.prospect import prospect
from slowtok.detectors.expectation.published import facts_of
from slowtok.proxy.cli.fit.answer import as_json, claim_as_json, unanswered
from slowtok.proxy.cli.fit.asked import AskError, FitOptions, check_positive, question
from slowtok.proxy.cli.fit.outlook import judge

MAX_LINE_BYTES = 1 << 20
"""A setup is a few hundred bytes; what is longer is something else."""

CLAIM = "claim"
KINDS: dict[str, type] = {CLAIM: float, **{f.name: get_args(f.type)[0] for f in fields(FitOptions)}}
"""What each option takes."""

ALSO_COLUMNS = {"model", "gpu", "quant", "engine", "experts", "experts_used"}

Line = dict[str, Any]


def answers(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield an answer for each line, blank ones left out."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield answer(line, number)


def answer(line: bytes, number: int) -> Line:
    """Return what to expect of the setup in a line, or `error` with what is wrong and where."""
    try:
        return _answered(_read(line))
    except Unsized as reason:
        return unanswered(str(reason))
    except (ValueError, OverflowError, ZeroDivisionError) as reason:
        return {"error": f"line {number}: {reason}", "line": number}


def _read(line: bytes) -> Line:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as reason:
        raise ValueError(f"not JSON: {reason}") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


def _answered(row: Line) -> Line:
    """Answer a setup by its options, or by its columns; those that are both are tried as these."""
    are_options = row.keys() <= KINDS.keys()
    if are_options and row.keys() - ALSO_COLUMNS:
        return _by_options(row)
    try:
        return as_json(prospect(facts_of(row)))
    except Unsized:
        if not (are_options and "model" in row):
            raise
    try:
        return _by_options(row)
    except AskError as reason:
        return unanswered(str(reason))


def _by_options(row: Line) -> Line:
    """Answer as `slowtok fit` does with these options; this machine is none of the setups."""
    given = _options(row)
    claimed_tps = given.pop(CLAIM, None)
    asked = FitOptions(**given)
    if asked.gpu is None:
        raise AskError("no gpu: name one, or cpu for none")
    setup = question(asked, None)
    found = prospect(setup.facts, reserved_tokens=setup.context_tokens)
    if claimed_tps is None:
        return as_json(found)
    check_positive(CLAIM, claimed_tps)
    return {**as_json(found), CLAIM: claim_as_json(judge(found, claimed_tps))}


def _options(row: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are given, each of the kind that it takes."""
    texts = {name: "" if value is None else str(value).strip() for name, value in row.items()}
    return {name: _value(name, text) for name, text in texts.items() if text}


def _value(name: str, text: str) -> str | int | float:
    kind = KINDS[name]
    try:
        value: str | int | float = kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} is not {what}: {text!r}") from None
    return value
