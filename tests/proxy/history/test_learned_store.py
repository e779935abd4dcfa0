"""What is kept outlives the process, and whatever happens to the disk costs only itself."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path

import pytest

from fakes.cases import healthy
from fakes.learning import DAY_S, NOW_UNIX_S, kept_at, rate
from slowtok.proxy.history import tables
from slowtok.proxy.history.database import open_database, run
from slowtok.proxy.history.keys import decode_setup
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peak_readings import Best
from slowtok.proxy.history.rates import MAX_OF_A_DAY, MAX_RATES, LearnedRate

SETUP = decode_setup(healthy())
RATE_COLUMNS = [field.name for field in fields(LearnedRate)]
TESTS = Path(__file__).parents[2]
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, limits and modes are POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "learned.sqlite3"


@contextmanager
def opened(path: Path, *, now_unix_s: float = NOW_UNIX_S) -> Iterator[LearnedStore]:
    kept = kept_at(path, now_unix_s=now_unix_s)
    try:
        yield kept
    finally:
        kept.close()


def write(path: Path, *rates: LearnedRate) -> LearnedStore:
    with opened(path) as kept:
        for each in rates:
            kept.add_rate(SETUP, each)
    return kept


def read(path: Path) -> list[LearnedRate]:
    with opened(path) as kept:
        assert (kept.errors, kept.failure) == (0, None)
        return kept.rates.of(SETUP)


def fill(path: Path, rates: list[LearnedRate]) -> None:
    """Write many rows at once, past all limits."""
    with closing(open_database(path, tables.STEPS)) as database:
        run(database, [statement for r in rates for statement in tables.adding_rate(SETUP, r)])


def multiply(path: Path, count: int, changes: str) -> None:
    """Copy the only row so often; `changes` are columns as SQL that may name the number `n`."""
    names = [change.split(" AS ")[1] for change in changes.split(", ")]
    others = {"setup_id", *RATE_COLUMNS} - set(names)
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT ?)"
            f" INSERT INTO rates ({', '.join([*names, *others])})"
            f" SELECT {', '.join([changes, *others])} FROM numbers, rates WHERE rates.id = 1",
            (count,),
        )
        database.commit()


def aside(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if "damaged" in entry.name]


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def child(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fakes.endless_writer", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_nothing_is_written_before_there_is_something(path: Path) -> None:
    with opened(path) as kept:
        assert (kept.errors, kept.failure) == (0, None)

    assert not path.parent.exists()


def test_what_was_learned_outlives_the_process(path: Path) -> None:
    unknown = replace(rate(5.0), expected_tps=None, healthy=False, engine_version="?")
    write(path, rate(), unknown)

    assert read(path) == [rate(), unknown]
    assert sorted(e.name[15:] for e in path.parent.iterdir()) == ["", ".lock"]


def test_the_best_of_a_day_outlives_the_process(path: Path) -> None:
    best = Best(gpu="GPU-1", day=20_000, sm_clock_mhz=1900, power_w=310.0)
    with opened(path) as kept, opened(path) as other:
        kept.add_best(replace(best, power_w=300.0))
        kept.add_best(replace(best, sm_clock_mhz=1800))
        other.add_best(Best(gpu="GPU-1", day=20_000, sm_clock_mhz=1700, memory_clock_mhz=9501))

    with closing(sqlite3.connect(path)) as database:
        assert list(tables.read_bests(database)) == [replace(best, memory_clock_mhz=9501)]
    with opened(path) as kept:
        assert not kept.bests.add(best)


@posix
def test_only_the_owner_can_read_it(path: Path) -> None:
    with closing(open_database(path, tables.STEPS)) as database:
        run(database, tables.adding_rate(SETUP, rate()))
        modes = {e.name[15:]: stat.S_IMODE(e.stat().st_mode) for e in path.parent.iterdir()}

    assert modes == {"": 0o600, "-wal": 0o600, "-shm": 0o600, ".lock": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("rows", [1, 40])
def test_a_process_that_is_killed_while_it_writes_loses_nothing(rows: int, path: Path) -> None:
    with child(str(path)) as writing:
        assert writing.stdout is not None
        written = [int(writing.stdout.readline()) for _ in range(rows)]
        writing.send_signal(signal.SIGKILL)
        written += [int(line) for line in writing.stdout if line.endswith("\n")]

    assert writing.returncode == -signal.SIGKILL
    assert count(path, "rates") >= written[-1] + 1
    assert read(path)[-1].tps >= written[-1] + 1
    assert aside(path) == []


@posix
def test_a_full_disk_costs_only_what_did_not_fit(path: Path) -> None:
    with child(str(path), "1500", str(44 * 1024)) as learning:
        said, _ = learning.communicate()
    errors, in_memory, failure = said.split(maxsplit=2)

    kept = count(path, "rates")
    assert 0 < kept < 1500
    assert 0 < int(errors) <= 1500 - kept  # a busy machine gives up on what is queued at the end
    assert in_memory == "1500"
    assert failure.startswith("what was learned is in memory only: ")
    write(path, rate(version="then"))
    assert len(read(path)) == kept + 1
    assert aside(path) == []


@pytest.mark.parametrize("content", [b"{}" * 600, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_file_that_is_no_database_is_put_aside(content: bytes, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    assert read(path) == []
    (name,) = aside(path)
    assert (path.parent / name).read_bytes() == content
    write(path, rate())
    assert read(path) == [rate()]


def test_a_damaged_page_puts_the_file_aside(path: Path) -> None:
    fill(path, [rate(version=str(i)) for i in range(500)])
    before = path.read_bytes()
    damaged = before[:20_000] + b"\xff" * 4096 + before[24_096:]
    path.write_bytes(damaged)

    assert read(path) == []
    (name,) = aside(path)
    assert (path.parent / name).read_bytes() == damaged


def test_a_second_damage_does_not_take_the_place_of_the_first(path: Path) -> None:
    path.parent.mkdir()
    for content in (b"a" * 600, b"b" * 600):
        path.write_bytes(content)
        read(path)

    assert {(path.parent / name).read_bytes() for name in aside(path)} == {b"a" * 600, b"b" * 600}


def test_a_file_that_goes_away_is_made_again(path: Path) -> None:
    write(path, rate())
    with opened(path) as kept:
        path.unlink()
        kept.add_rate(SETUP, rate(100.0))
    assert kept.errors == 0
    assert read(path) == [rate(100.0)]


def unusable(path: Path) -> Path:
    path.parent.mkdir()
    path.parent.joinpath("file").touch()
    return path.parent / "file" / "learned.sqlite3"


def a_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def not_to_be_written(path: Path) -> Path:
    return Path("/proc/learned.sqlite3")  # may not be written even by root


@pytest.mark.parametrize(
    "place",
    [
        unusable,
        a_directory,
        pytest.param(
            not_to_be_written,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's"),
        ),
    ],
)
def test_a_place_that_cannot_be_used_costs_only_the_next_start(place: object, path: Path) -> None:
    assert callable(place)
    kept = write(place(path), rate())

    assert kept.errors >= 1
    assert kept.failure is not None
    assert str(path.parent) not in kept.failure
    assert kept.rates.of(SETUP) == [rate()]


def test_two_proxies_at_once(path: Path) -> None:
    with opened(path) as one, opened(path) as other:
        for i in range(100):
            one.add_rate(SETUP, rate(version=f"one {i}"))
            other.add_rate(SETUP, rate(version=f"other {i}"))

    assert (one.errors, other.errors) == (0, 0)
    assert len(read(path)) == 200
    assert count(path, "setups") == 1


def test_a_damage_is_put_aside_once_by_two_proxies(path: Path) -> None:
    write(path, rate())
    with opened(path) as one, opened(path) as other:
        path.write_bytes(b"x" * 600)
        one.add_rate(SETUP, rate(100.0))
        other.add_rate(SETUP, rate(101.0))

    assert (one.errors, other.errors) == (0, 0)
    assert sorted(r.tps for r in read(path)) == [100.0, 101.0]
    assert len(aside(path)) == 1


def test_many_rows_are_pruned(path: Path) -> None:
    fill(path, [rate(0.5, days_ago=1.0)])
    multiply(path, 1_000, f"{NOW_UNIX_S - 31 * DAY_S} AS at_unix_s")
    multiply(path, 50_000, "1.0 * n AS tps")
    multiply(path, 49_000, f"{NOW_UNIX_S} AS at_unix_s, 'b' || n AS engine_version")

    write(path, rate(42.0))

    kept = read(path)
    assert count(path, "rates") == len(kept) == MAX_RATES
    assert kept[-1] == rate(42.0)
    assert {r.day for r in kept} == {rate().day}


def test_a_busy_day_keeps_its_newest(path: Path) -> None:
    fill(path, [rate(float(i + 1), days_ago=1.0) for i in range(1000)])
    write(path, rate(42.0))

    assert [r.tps for r in read(path)] == [*map(float, range(1001 - MAX_OF_A_DAY, 1001)), 42.0]


def test_a_setup_without_rates_is_forgotten(path: Path) -> None:
    fill(path, [rate(days_ago=31.0)])
    with opened(path) as kept:
        kept.add_rate(replace(SETUP, model="other"), rate())

    assert count(path, "setups") == 1


def test_a_clock_that_jumps_back_deletes_nothing(path: Path) -> None:
    write(path, rate())
    with opened(path, now_unix_s=0.0) as kept:
        kept.add_rate(SETUP, replace(rate(100.0), at_unix_s=0.0))

    assert [r.tps for r in kept.rates.of(SETUP)] == [150.0, 100.0]
    assert count(path, "rates") == 2


def test_an_older_schema_is_brought_up_to_date(path: Path) -> None:
    with closing(open_database(path, tables.STEPS[:1])) as database:
        run(database, tables.adding_rate(SETUP, rate()))

    assert read(path) == [rate()]
    assert count(path, "bests") == 0
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(tables.STEPS),)


def test_a_step_that_breaks_leaves_the_older_schema(path: Path) -> None:
    write(path, rate())
    broken = (*tables.STEPS, ("CREATE TABLE more (id INTEGER)", "no SQL"))
    with pytest.raises(sqlite3.OperationalError):
        open_database(path, broken)

    assert read(path) == [rate()]


def test_a_newer_schema_is_left_alone(path: Path) -> None:
    newer = (*tables.STEPS, ("CREATE TABLE more (id INTEGER)",))
    open_database(path, newer).close()

    kept = write(path, rate())

    assert kept.errors == 2, "read and written"
    assert (
        kept.failure == "what was learned is in memory only: written by a newer slowtok (schema 3)"
    )
    assert count(path, "more") == count(path, "rates") == 0
    assert aside(path) == []


def test_a_row_of_another_kind_costs_no_start(path: Path) -> None:
    write(path, rate())
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE rates SET tps = 'fast'")
        database.commit()

    with opened(path) as kept:
        assert kept.errors == 1
        assert kept.failure is not None


def test_no_table_has_a_place_for_a_prompt(path: Path) -> None:
    write(path, rate())
    with closing(sqlite3.connect(path)) as database:
        texts = set(map(str, database.execute("SELECT * FROM setups").fetchone()))

    assert texts == {
        *("1", "decode", "cpu", "smollm2 98000000", "llama-server", "f16", "0-1k", "alone", "0")
    }


def test_memory_and_disk_have_the_same_bounds(path: Path) -> None:
    days = [rate(days_ago=float(d), version=str(v)) for d in range(29, -1, -1) for v in range(40)]
    fill(path, days)

    assert len(read(path)) == len(days)
    assert days[-1].at_unix_s - days[0].at_unix_s < 30 * DAY_S
