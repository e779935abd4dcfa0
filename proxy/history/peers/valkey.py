"""Rows in Valkey or Redis: one hash a setup, one field a card. Every call is about one key.

A setup that nobody writes to any more goes by itself. Needs HRANDFIELD (Redis 6.2, any Valkey).
"""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.store import LIMIT_S, MAX_CARDS
from slowtok.proxy.history.rates import KEEP_S

PREFIX = "slowtok:rates:"


class Valkey:
    """Implements `store.Store` with Valkey."""

    def __init__(self, url: str) -> None:
        """Raises ValueError where the library cannot use the URL."""
        parts = urlsplit(url)
        scheme = "redis" if parts.scheme == "valkey" else parts.scheme
        self._client: Any = redis.Redis.from_url(
            urlunsplit(parts._replace(scheme=scheme)),
            socket_timeout=LIMIT_S,
            socket_connect_timeout=LIMIT_S,
            retry=Retry(NoBackoff(), 0),  # when to ask again is not the library's to say
            decode_responses=False,
        )

    def check(self) -> None:
        """Ask for a sign of life."""
        self._client.ping()

    def read(self, place: PeerKey) -> dict[str, bytes]:
        """Return the row of this card and those of some others, drawn anew each time."""
        key = PREFIX + place.setup
        mine = self._client.hget(key, place.card)
        drawn = self._client.hrandfield(key, MAX_CARDS, withvalues=True) or []
        flat = [part for pair in drawn for part in (pair if isinstance(pair, list) else [pair])]
        rows = {card.decode(): row for card, row in zip(flat[::2], flat[1::2], strict=True)}
        return rows if mine is None else {**rows, place.card: mine}

    def write(self, place: PeerKey, row: bytes, *, at_unix_s: float) -> None:
        """Put the row in its place, and let the setup live on for as long as rates are kept."""
        del at_unix_s  # it is in the row; old fields are found when they are read
        key = PREFIX + place.setup
        with self._client.pipeline(transaction=True) as together:
            together.hset(key, place.card, row)
            together.expire(key, int(KEEP_S))
            together.execute()

    def forget(self, setup: str, cards: list[str]) -> None:
        """Delete the rows of these cards."""
        self._client.hdel(PREFIX + setup, *cards)

    def now_unix_s(self) -> float:
        """Return the store's own time."""
        whole_s, micros = self._client.time()
        return float(whole_s + micros / 1e6)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
