"""Setups as JSON lines in, what to expect of each as JSON lines out, one for one and at once.

The keys are the columns of `fit/data/decode_rates.csv`; any may be missing, values may be numbers
or text. A line that cannot be read gives an `error` in its place, and the rest goes on.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from slowtok.detectors.expectation.assumed_model import Unsized
from slowtok.detectors.expectation.prospect import prospect
from slowtok.detectors.expectation.published import facts_of
from slowtok.proxy.cli.fit.answer import as_json, unanswered

MAX_LINE_BYTES = 1 << 20
"""A setup is a few hundred bytes; what is longer is something else."""

Line = dict[str, Any]


def answers(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield an answer for each line, blank ones left out."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield answer(line, number)


def answer(line: bytes, number: int) -> Line:
    """Return what to expect of the setup in a line, or `error` with what is wrong and where."""
    try:
        return _answer(line)
    except Unsized as reason:
        return unanswered(str(reason))
    except (ValueError, OverflowError, ZeroDivisionError) as reason:
        return {"error": f"line {number}: {reason}", "line": number}


def _answer(line: bytes) -> Line:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as reason:
        raise ValueError(f"not JSON: {reason}") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return as_json(prospect(facts_of(row)))
