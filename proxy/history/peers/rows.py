"""The newest healthy rates of one card in one setup, as the row that a store holds. Pure.

Whoever may write to the store may write nonsense: what cannot be a rate is left out.
"""

from collections.abc import Iterable

import orjson

from slowtok.proxy.history.rates import DAY_S, KEEP_S, LearnedRate

MAX_OF_A_CARD = 8
"""Rates in a row: enough for a baseline alone, and no card outweighs the others."""

MAX_ROW_BYTES = 4096
MAX_VERSION_CHARS = 64
FUTURE_S = DAY_S  # clocks of other machines may be wrong


def pack(rates: Iterable[LearnedRate]) -> bytes:
    """Return the newest rates as a row."""
    newest = sorted(rates, key=lambda rate: rate.at_unix_s)[-MAX_OF_A_CARD:]
    made_by = [rate.made_by[:MAX_VERSION_CHARS] for rate in newest]
    return orjson.dumps(
        [
            [r.at_unix_s, r.tps, r.expected_tps, made]
            for r, made in zip(newest, made_by, strict=True)
        ]
    )


def unpack(row: bytes, *, now_unix_s: float) -> tuple[LearnedRate, ...]:
    """Return the rates of a row that are not too old, the oldest first.

    Raises:
        ValueError: it is no row.
    """
    said = orjson.loads(row) if len(row) <= MAX_ROW_BYTES else None
    if not isinstance(said, list) or len(said) > MAX_OF_A_CARD:
        raise ValueError("not a row of rates")
    rates = (_rate(entry) for entry in said)
    first, last = now_unix_s - KEEP_S, now_unix_s + FUTURE_S
    return tuple(rate for rate in rates if first <= rate.at_unix_s <= last)


def _rate(entry: object) -> LearnedRate:
    if not isinstance(entry, list) or len(entry) != 4:
        raise ValueError("not a rate")
    at_unix_s, tps, expected_tps, made_by = entry
    numbers = [at_unix_s, tps, *([] if expected_tps is None else [expected_tps])]
    if not all(type(n) in (int, float) and n > 0 for n in numbers) or not isinstance(made_by, str):
        raise ValueError("not a rate")
    return LearnedRate(
        at_unix_s=float(at_unix_s),
        tps=float(tps),
        expected_tps=None if expected_tps is None else float(expected_tps),
        healthy=True,
        engine_version="",  # the same for all of a setup, whose hash it is part of
        made_by=made_by[:MAX_VERSION_CHARS],
    )
