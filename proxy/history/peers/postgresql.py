"""Rows in PostgreSQL: one table, made where it is missing, one row a card in each setup."""

import contextlib
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from slowtok.proxy.history.peers.peer_key import PeerKey
from slowtok.proxy.history.peers.store import LIMIT_S, MAX_CARDS, MAX_ROW_BYTES
from slowtok.proxy.history.rates import KEEP_S

PRUNE_EVERY = 500  # rows written
_LOCK = 0x510770  # any number, the same for all: two that create at once would collide
_EXISTS = "SELECT to_regclass('slowtok_rates') IS NOT NULL"
_CREATE = """CREATE TABLE IF NOT EXISTS slowtok_rates (
    setup TEXT NOT NULL,
    card TEXT NOT NULL,
    at_unix_s DOUBLE PRECISION NOT NULL,
    row TEXT NOT NULL,
    PRIMARY KEY (setup, card)
)"""
_READ = """SELECT card, row FROM (
    SELECT card, row, at_unix_s FROM slowtok_rates
    WHERE setup = %s AND length(row) <= %s ORDER BY (card = %s) DESC, at_unix_s DESC LIMIT %s
) AS newest"""
_WRITE = """INSERT INTO slowtok_rates (setup, card, at_unix_s, row) VALUES (%s, %s, %s, %s)
    ON CONFLICT (setup, card) DO UPDATE SET at_unix_s = excluded.at_unix_s, row = excluded.row"""
_FORGET = "DELETE FROM slowtok_rates WHERE setup = %s AND card = ANY(%s)"
_PRUNE = "DELETE FROM slowtok_rates WHERE at_unix_s < extract(epoch FROM now()) - %s"
_NOW = "SELECT extract(epoch FROM clock_timestamp())"


class _Impatient(psycopg.Connection[TupleRow]):
    """A connection whose every wait has an end, also where the server has stopped."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, LIMIT_S if timeout is None else timeout)


class Postgresql:
    """Implements `store.Store` with PostgreSQL."""

    def __init__(self, url: str) -> None:
        """Raises ValueError where the library cannot use the URL."""
        try:
            conninfo_to_dict(url)
        except psycopg.Error:
            raise ValueError("not a URL that PostgreSQL's library understands") from None
        self._url = url
        self._opened: _Impatient | None = None
        self._written = 0

    def check(self) -> None:
        """Connect, and make the table where it is missing."""
        if self._ask(_EXISTS) != [(True,)]:
            self._create()

    def read(self, place: PeerKey) -> dict[str, bytes]:
        """Return the row of this card and the newest ones of others."""
        values = (place.setup, MAX_ROW_BYTES, place.card, 1 + MAX_CARDS)
        return {str(card): str(row).encode() for card, row in self._ask(_READ, values)}

    def write(self, place: PeerKey, row: bytes, *, at_unix_s: float) -> None:
        """Put the row in its place; now and then delete what is too old."""
        self._ask(_WRITE, (place.setup, place.card, at_unix_s, row.decode()))
        self._written += 1
        if self._written % PRUNE_EVERY == 1:
            self._ask(_PRUNE, (KEEP_S,))

    def forget(self, setup: str, cards: list[str]) -> None:
        """Delete the rows of these cards."""
        self._ask(_FORGET, (setup, cards))

    def now_unix_s(self) -> float:
        """Return the store's own time."""
        return float(self._ask(_NOW)[0][0])

    def close(self) -> None:
        """Close the connection."""
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(psycopg.Error):
                opened.close()

    def _create(self) -> None:
        connection = self._connection()
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(_CREATE)

    def _ask(self, sql: Any, values: Sequence[object] = ()) -> list[TupleRow]:
        """Run one statement; after a failure the connection is given up, whatever its state."""
        try:
            cursor = self._connection().execute(sql, values)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error:
            self.close()
            raise

    def _connection(self) -> _Impatient:
        if self._opened is None or self._opened.closed:
            self._opened = _Impatient.connect(
                self._url,
                autocommit=True,
                connect_timeout=2,  # the least that libpq takes
                prepare_threshold=None,  # as PgBouncer wants it
                application_name="slowtok",
            )
        return self._opened
