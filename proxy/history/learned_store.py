"""The database of what was learned: read once at the start, written by a thread, never waited for.

Whatever breaks costs only what the next start would have known: it is counted, and said in the
status; the proxy goes on with what is in memory.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from slowtok.proxy.history import database, tables
from slowtok.proxy.history.database import Statement
from slowtok.proxy.history.keys import BaselineKey
from slowtok.proxy.history.peak_readings import Best, PeakReadings
from slowtok.proxy.history.rates import LearnedRate, Rates
from slowtok.proxy.runtime.background_writer import BackgroundWriter

PRUNE_EVERY = 500  # statements, of which a row takes one or two
GATHER_S = 1.0  # rows are written together: each transaction costs more than its row


class LearnedStore:
    """Rates and best readings, in memory and on disk."""

    def __init__(self, path: Path, *, now_unix_s: Callable[[], float] = time.time) -> None:
        self.rates = Rates()
        self.bests = PeakReadings()
        self.failure: str | None = None
        """Why the disk is behind the memory; None while it is not."""
        self._path = path
        self._now_unix_s = now_unix_s
        self._database: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._gathered: list[Statement] = []
        self._statements = 0
        self._unread = 0
        self._read()
        self._writer = BackgroundWriter[Callable[[], tuple[Statement, ...]]](
            lambda row: self._gathered.extend(row()),
            flush=self._write,
            close=self._close,
            gather_s=GATHER_S,
        )

    @property
    def errors(self) -> int:
        """How often reading or writing failed."""
        return self._unread + self._writer.failed + self._writer.dropped

    def add_rate(self, setup: BaselineKey, rate: LearnedRate) -> None:
        """Keep a rate; never waits."""
        self.rates.add(setup, rate)
        self._writer.write(partial(tables.adding_rate, setup, rate))

    def add_best(self, best: Best) -> None:
        """Keep readings that are better than what was seen; never waits."""
        if self.bests.add(best):
            self._writer.write(partial(tables.keeping_best, best))

    def close(self) -> None:
        """Write what is queued; give up on a disk that hangs."""
        self._writer.close()

    def _read(self) -> None:
        if not self._path.exists():
            return
        try:
            with contextlib.closing(self._open()) as opened:
                for setup, rate in tables.read_rates(opened):
                    self.rates.add(setup, rate)
                for best in tables.read_bests(opened):
                    self.bests.add(best)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self._unread += 1
            self.failure = _reason(error)

    def _open(self) -> sqlite3.Connection:
        return database.open_database(self._path, tables.STEPS)

    def _write(self) -> None:
        """Write the gathered rows; in the writer's thread, which counts what is raised."""
        statements, self._gathered = self._gathered, []
        before, self._statements = self._statements, self._statements + len(statements)
        try:
            self._run(statements)
            if before // PRUNE_EVERY != self._statements // PRUNE_EVERY or not before:
                self._run(tables.pruning(self._now_unix_s()))
        except (sqlite3.Error, OSError) as error:
            self.failure = _reason(error)
            raise
        self.failure = None

    def _run(self, statements: Sequence[Statement]) -> None:
        """Do it, at the second try with the file opened again: mended, or with its WAL emptied."""
        try:
            database.run(self._connection(), statements)
        except sqlite3.Error:
            self._close()
            database.run(self._connection(), statements)

    def _connection(self) -> sqlite3.Connection:
        """Return the database, opened again where the file is not the one that was opened."""
        if database.identity(self._path) != self._identity:
            self._close()
        if self._database is None:
            self._database = self._open()
            self._identity = database.identity(self._path)
        return self._database

    def _close(self) -> None:
        opened, self._database = self._database, None
        if opened is not None:
            with contextlib.suppress(sqlite3.Error):
                opened.close()


def _reason(error: Exception) -> str:
    """Return the error without a path: what users need, and nothing of their home."""
    said = getattr(error, "strerror", None) or str(error)
    return f"what was learned is in memory only: {said}"
