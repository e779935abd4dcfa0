"""The store that machines share: what it must be able to do, how one is opened, what its rows are.

A row is the newest healthy rates of one card in one setup. Whoever may write to the store may write
nonsense: what cannot be a rate is left out.
"""

from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

import orjson

from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.rates import DAY_S, KEEP_S, LearnedRate

LIMIT_S = 1.0
"""An answer that takes longer is none. Heuristic."""

MAX_CARDS = 32
"""Other cards' rows that are read at once: plenty for a median. Heuristic."""

EXTRAS = {"postgresql": "postgresql"}  # all other schemes need redis
_USUAL_PORTS = {"postgresql": 5432}
_USUAL_PORT = 6379

_WORDS = (  # what is looked for in an error's kind and text, never shown itself: it may hold a key
    (("timeout", "timed out"), f"no answer within {LIMIT_S:g} s"),
    (("password", "authentic", "wrongpass", "noauth"), "it refuses the user or the password"),
    (("permission", "noperm", "privilege"), "it does not permit that to this user"),
    (("does not exist",), "there is no such database or user"),
    (("refused", "no such file"), "nothing listens there"),
    (("name or service", "resolve", "nodename", "name resolution"), "its name is not known"),
    (("certificate", "ssl"), "its TLS certificate cannot be used"),
    (("connection",), "the connection broke"),
)

MAX_OF_A_CARD = 8
"""Rates in a row: enough for a baseline alone, and no card outweighs the others."""

MAX_ROW_BYTES = 4096
MAX_VERSION_CHARS = 64
FUTURE_S = DAY_S  # clocks of other machines may be wrong


class Store(Protocol):
    """One row for each card in each setup; used by one thread. What fails raises."""

    def check(self) -> None:
        """Connect, and make what is needed there."""
        ...

    def read(self, place: PeerKey) -> dict[str, bytes]:
        """Return the rows of a setup by card: this card's, and at most `MAX_CARDS` others'."""
        ...

    def write(self, place: PeerKey, row: bytes, *, at_unix_s: float) -> None:
        """Put a row in the place of the card's earlier one."""
        ...

    def forget(self, setup: str, cards: list[str]) -> None:
        """Delete the rows of these cards."""
        ...

    def now_unix_s(self) -> float:
        """Return the store's own time: a machine whose clock is wrong must delete nothing."""
        ...

    def close(self) -> None:
        """Give the connection up."""
        ...


def open_store(url: str) -> Store:
    """Return the store at a URL; nothing is sent yet.

    Raises:
        ImportError: its library is not installed.
        ValueError: its library cannot use the URL.
    """
    if urlsplit(url).scheme == "postgresql":
        from slowtok.proxy.history.peers.postgresql import Postgresql  # noqa: PLC0415 - an extra

        return Postgresql(url)
    from slowtok.proxy.history.peers.valkey import Valkey  # noqa: PLC0415 - an extra

    return Valkey(url)


def extra_of(url: str) -> str:
    """Return the name of the extra that brings the store's library."""
    return EXTRAS.get(urlsplit(url).scheme, "redis")


def shown(url: str) -> str:
    """Return what may be shown of a URL: neither user nor password, path or query."""
    parts = urlsplit(url)
    port = parts.port or _USUAL_PORTS.get(parts.scheme, _USUAL_PORT)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme} at {host}:{port}" if host else f"{parts.scheme} at a local socket"


def in_words(error: Exception) -> str:
    """Return why a store failed, in words that can hold nothing of its URL."""
    chain = [error, *(e for e in (error.__cause__, error.__context__) if e is not None)]
    text = " ".join(f"{type(e).__name__} {e}" for e in chain).lower()
    found = (words for marks, words in _WORDS if any(mark in text for mark in marks))
    return next(found, type(error).__name__)


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
