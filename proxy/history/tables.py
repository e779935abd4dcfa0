"""The tables that outlive a process, and all SQL about their content.

`STEPS` is how a database comes from one schema version to the next: what was released once is
never changed, what is new is one more step. No table has a place for a prompt.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import astuple

from slowtok.proxy.history.database import Statement
from slowtok.proxy.history.keys import BaselineKey
from slowtok.proxy.history.peak_readings import Best
from slowtok.proxy.history.rates import DAY_S, KEEP_S, MAX_OF_A_DAY, MAX_RATES, LearnedRate

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE setups (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            device TEXT NOT NULL,
            model TEXT NOT NULL,
            engine TEXT NOT NULL,
            kv_type TEXT NOT NULL,
            tokens TEXT NOT NULL,
            sequences TEXT NOT NULL,
            speculative INTEGER NOT NULL,
            UNIQUE (kind, device, model, engine, kv_type, tokens, sequences, speculative)
        )""",
        """CREATE TABLE rates (
            id INTEGER PRIMARY KEY,
            setup_id INTEGER NOT NULL REFERENCES setups (id),
            at_unix_s REAL NOT NULL,
            tps REAL NOT NULL,
            expected_tps REAL,
            healthy INTEGER NOT NULL,
            engine_version TEXT NOT NULL,
            made_by TEXT NOT NULL
        )""",
    ),
    (
        """CREATE TABLE bests (
            gpu TEXT NOT NULL,
            day INTEGER NOT NULL,
            sm_clock_mhz INTEGER,
            memory_clock_mhz INTEGER,
            power_w REAL,
            PRIMARY KEY (gpu, day)
        )""",
    ),
)

_SETUP = "kind, device, model, engine, kv_type, tokens, sequences, speculative"
_RATE = "at_unix_s, tps, expected_tps, healthy, engine_version, made_by"
_ADD_SETUP = f"INSERT OR IGNORE INTO setups ({_SETUP}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
_ADD_RATE = f"""INSERT INTO rates (setup_id, {_RATE})
    SELECT id, ?, ?, ?, ?, ?, ? FROM setups WHERE ({_SETUP}) = (?, ?, ?, ?, ?, ?, ?, ?)"""  # noqa: S608 - constants
_NEWEST_RATES = f"""SELECT {_SETUP}, {_RATE} FROM
    (SELECT * FROM rates ORDER BY id DESC LIMIT ?) AS rates
    JOIN setups ON setups.id = rates.setup_id ORDER BY rates.id"""  # noqa: S608 - constants
_KEEP_BEST = """INSERT INTO bests (gpu, day, sm_clock_mhz, memory_clock_mhz, power_w)
    VALUES (?, ?, ?, ?, ?) ON CONFLICT (gpu, day) DO UPDATE SET
    sm_clock_mhz = max(coalesce(sm_clock_mhz, excluded.sm_clock_mhz),
                       coalesce(excluded.sm_clock_mhz, sm_clock_mhz)),
    memory_clock_mhz = max(coalesce(memory_clock_mhz, excluded.memory_clock_mhz),
                           coalesce(excluded.memory_clock_mhz, memory_clock_mhz)),
    power_w = max(coalesce(power_w, excluded.power_w), coalesce(excluded.power_w, power_w))"""
_DROP_OF_FULL_DAYS = """DELETE FROM rates WHERE id IN (SELECT id FROM (
    SELECT id, row_number() OVER (
        PARTITION BY setup_id, CAST(at_unix_s / ? AS INTEGER), healthy, engine_version
        ORDER BY id DESC) AS place FROM rates) WHERE place > ?)"""
_DROP_BEYOND = (
    "DELETE FROM rates WHERE id <= (SELECT id FROM rates ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_DROP_EMPTY = "DELETE FROM setups WHERE id NOT IN (SELECT setup_id FROM rates)"


def adding_rate(setup: BaselineKey, rate: LearnedRate) -> tuple[Statement, ...]:
    """Return what writes one rate."""
    return (_ADD_SETUP, astuple(setup)), (_ADD_RATE, (*astuple(rate), *astuple(setup)))


def keeping_best(best: Best) -> tuple[Statement, ...]:
    """Return what writes the best readings of a GPU's day, where they are better."""
    return ((_KEEP_BEST, astuple(best)),)


def pruning(now_unix_s: float) -> tuple[Statement, ...]:
    """Return what deletes the rows that are too old or too many."""
    oldest_unix_s = now_unix_s - KEEP_S
    return (
        ("DELETE FROM rates WHERE at_unix_s < ?", (oldest_unix_s,)),
        (_DROP_OF_FULL_DAYS, (DAY_S, MAX_OF_A_DAY)),
        (_DROP_BEYOND, (MAX_RATES,)),
        (_DROP_EMPTY, ()),
        ("DELETE FROM bests WHERE day < ?", (int(oldest_unix_s // DAY_S),)),
    )


def read_rates(database: sqlite3.Connection) -> Iterator[tuple[BaselineKey, LearnedRate]]:
    """Yield the newest rates, oldest first."""
    for row in database.execute(_NEWEST_RATES, (MAX_RATES,)):
        kind, device, model, engine, kv_type, tokens, sequences, speculative = row[:8]
        at_unix_s, tps, expected_tps, healthy, engine_version, made_by = row[8:]
        setup = BaselineKey(
            kind=kind,
            device=device,
            model=model,
            engine=engine,
            kv_type=kv_type,
            tokens=tokens,
            sequences=sequences,
            speculative=bool(speculative),
        )
        yield (
            setup,
            LearnedRate(
                at_unix_s=float(at_unix_s),
                tps=float(tps),
                expected_tps=None if expected_tps is None else float(expected_tps),
                healthy=bool(healthy),
                engine_version=engine_version,
                made_by=made_by,
            ),
        )


def read_bests(database: sqlite3.Connection) -> Iterator[Best]:
    """Yield the best readings of each GPU and day."""
    for gpu, day, sm_clock_mhz, memory_clock_mhz, power_w in database.execute(
        "SELECT gpu, day, sm_clock_mhz, memory_clock_mhz, power_w FROM bests ORDER BY day"
    ):
        yield Best(
            gpu=gpu,
            day=int(day),
            sm_clock_mhz=sm_clock_mhz,
            memory_clock_mhz=memory_clock_mhz,
            power_w=power_w,
        )
