"""Opening an SQLite file that may be new, old, damaged, or shared with another proxy.

WAL with synchronous=NORMAL outlives a process that is killed at any moment; a machine that loses
its power may lose the last rows, and no more. A damaged file is put aside and never deleted.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

BUSY_S = 2.0  # another proxy writes for milliseconds
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_WITH_IT = ("-wal", "-shm", "")  # in this order, or they would be taken for the next file's

Statement = tuple[str, tuple[object, ...]]
"""SQL and the values of its places."""


class NewerSchema(sqlite3.DatabaseError):
    """A newer slowtok wrote the file: it is left as it is."""


def open_database(path: Path, steps: Sequence[Sequence[str]]) -> sqlite3.Connection:
    """Return the database at `path`, made or brought to the newest schema; put aside if damaged.

    `steps` are the statements from each schema version to the next, 0 is an empty file.

    Raises:
        sqlite3.Error: it cannot be opened or written, or is newer than `steps`.
        OSError: its directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tried = identity(path)
    if tried is None or path.stat().st_size == 0:
        with _nobody_else(path):  # SQLite does not wait for another one's change to WAL
            return _open(path, steps)
    try:
        return _open(path, steps)
    except sqlite3.DatabaseError as error:
        if not is_damaged(error):
            raise
        with _nobody_else(path):
            if identity(path) == tried:  # else another proxy has put it aside already
                put_aside(path)
            return _open(path, steps)


def run(database: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Do all of it, or nothing.

    Raises:
        sqlite3.Error: the disk is full, or the database is locked or damaged.
    """
    database.execute("BEGIN IMMEDIATE")
    try:
        for sql, values in statements:
            database.execute(sql, values)
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def is_damaged(error: sqlite3.Error) -> bool:
    """Return True if the file is no database any more."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED


def put_aside(path: Path) -> Path:
    """Give the file, and what SQLite has beside it, another name; returns the new one.

    Raises:
        OSError: it cannot be renamed.
    """
    stem = f"{path.stem}.damaged-{int(time.time())}"
    count = 0
    while (aside := path.with_name(f"{stem}-{count}{path.suffix}")).exists():
        count += 1
    for end in _WITH_IT:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{end}").replace(f"{aside}{end}")
    return aside


@contextlib.contextmanager
def _nobody_else(path: Path) -> Iterator[None]:
    """Keep other proxies from mending the same file; a lock of SQLite's ends with its process."""
    with contextlib.closing(_connect(path.with_name(f"{path.name}.lock"))) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        yield


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells this file from another one of that name; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open(path: Path, steps: Sequence[Sequence[str]]) -> sqlite3.Connection:
    database = _connect(path)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        (said,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if said != "ok":
            damaged = sqlite3.DatabaseError(said)
            damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damaged
        _bring_up_to_date(database, steps)
    except BaseException:
        database.close()
        raise
    return database


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite makes -wal and -shm alike
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _bring_up_to_date(database: sqlite3.Connection, steps: Sequence[Sequence[str]]) -> None:
    if _version(database) == len(steps):
        return
    database.execute("BEGIN IMMEDIATE")  # another proxy may do the same
    try:
        version = _version(database)
        if version > len(steps):
            raise NewerSchema(f"written by a newer slowtok (schema {version})")
        for step in steps[version:]:
            for statement in step:
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(steps)}")
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])
