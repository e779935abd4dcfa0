"""A prospect as JSON: rates in tokens per second, memory in GiB. What is not known is null.

`answers` gives one for each setup of `--batch`, JSON lines in and out, one for one and at once. The
keys there are the columns of `fit/data/decode_rates.csv`; any may be missing, values may be numbers
or text. A line that cannot be read gives an `error` in its place, and the rest goes on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import orjson

from slowtok.detectors.expectation.assumed_model import Unsized
from slowtok.detectors.expectation.footprint import GIB
from slowtok.detectors.expectation.prospect import ExpectedRate, Prospect, prospect
from slowtok.detectors.expectation.published import facts_of

DIGITS = 4

MAX_LINE_BYTES = 1 << 20
"""A setup is a few hundred bytes; what is longer is something else."""

Line = dict[str, Any]


def as_json(found: Prospect) -> dict[str, Any]:
    """Return the object that `--batch` writes; `--json` adds to it."""
    return {
        "decode_tps": rate(found.decode),
        "prefill_tps": rate(found.prefill),
        "vram_gib": _memory(found),
        "fits": found.fits,
        "basis": list(found.basis),
    }


def unanswered(reason: str) -> dict[str, Any]:
    """Return the same for a setup of which too little is known."""
    nothing = rate(ExpectedRate())
    return {
        "decode_tps": nothing, "prefill_tps": nothing, "vram_gib": None, "fits": None,
        "basis": [reason],
    }  # fmt: skip


def rate(found: ExpectedRate) -> dict[str, float | None]:
    """Return a rate with a few digits: more would claim what nobody knows."""
    return {name: _rounded(value) for name, value in asdict(found).items()}


def _memory(found: Prospect) -> dict[str, float | None] | None:
    """Return the parts. Buffers are a range, and so is what is needed altogether."""
    needed = found.footprint
    if needed is None:
        return None
    return {
        "weights": gib(needed.weights_bytes),
        "embeddings_in_ram": gib(needed.embedding_bytes),
        "kv_cache": gib(needed.kv_bytes),
        "buffers_low": gib(needed.least_overhead_bytes),
        "buffers_high": gib(needed.most_overhead_bytes),
        "needed_low": gib(needed.least_bytes),
        "needed_high": gib(needed.most_bytes),
        "available": gib(found.room_bytes),
    }


def gib(count: float | None) -> float | None:
    """Return bytes in GiB, with the digits that count."""
    return None if count is None else round(count / GIB, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def answers(lines: Iterable[bytes]) -> Iterator[Line]:
    """Yield an answer for each line, blank ones left out."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield answer(line, number)


def answer(line: bytes, number: int) -> Line:
    """Return what to expect of the setup in a line, or `error` with what is wrong and where."""
    try:
        return _prospect_of(line)
    except Unsized as reason:
        return unanswered(str(reason))
    except (ValueError, OverflowError, ZeroDivisionError) as reason:
        return {"error": f"line {number}: {reason}", "line": number}


def _prospect_of(line: bytes) -> Line:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as reason:
        raise ValueError(f"not JSON: {reason}") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return as_json(prospect(facts_of(row)))
