"""The bandwidth of RAM: measured in a quiet moment, kept, and never in a request's way."""

import asyncio
import contextlib
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from slowtok.proxy.sampling.host import ram
from slowtok.proxy.sampling.host.ram import (
    ENOUGH_WINDOWS,
    MAX_AGE_S,
    RamBandwidth,
    kept_bytes_per_s,
)

MEASURES = "for _ in range(5): print('{\"bytes_per_s\": 5e10}')"
ONE_WINDOW = "print('{\"bytes_per_s\": 3e10}', flush=True)"
HANGS = "import time; time.sleep(600)"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def path(state: Path) -> Path:
    return state / "ram.json"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "QUIET_CHECK_S", 0.005)


def measuring(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(ram, "COMMAND", (sys.executable, "-S", "-c", program))


def yes() -> bool:
    return True


def no() -> bool:
    return False


def exists(path: Path) -> bool:
    return path.exists()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():  # noqa: ASYNC110 - another process has no event to wait for
            await asyncio.sleep(0.005)


def is_measuring() -> bool:
    """Say whether the program that hangs runs; one that is killed and not yet reaped does not."""
    for child in psutil.Process(os.getpid()).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if child.cmdline()[-1:] == [HANGS]:
                return True
    return False


class Quiet:
    """Counts how often it was asked; the program runs once it was asked twice."""

    def __init__(self, *, quiet: bool = True) -> None:
        self.quiet = quiet
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.quiet


def told_windows(state: Path) -> int | None:
    """Return how many windows are kept."""
    path = state / "ram.json"
    return orjson.loads(path.read_bytes()).get("windows") if path.exists() else None


def keep(path: Path, age_s: float) -> None:
    path.parent.mkdir()
    path.write_bytes(orjson.dumps({"bytes_per_s": 4e10, "measured_unix_s": time.time() - age_s}))


async def test_measured_once_and_kept(
    state: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, MEASURES)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    assert bandwidth.bytes_per_s is None

    bandwidth.start()
    await until(lambda: bandwidth.bytes_per_s is not None and exists(path))
    await bandwidth.stop()

    assert bandwidth.bytes_per_s == 5e10
    assert RamBandwidth(state, is_quiet=no, is_idle=no).bytes_per_s == 5e10
    if sys.platform != "win32":
        assert mode(path) == 0o600


async def test_known_number_is_not_measured_again(
    state: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, "raise SystemExit")
    keep(path, age_s=MAX_AGE_S - 60)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await bandwidth.stop()

    assert bandwidth.bytes_per_s == 4e10
    assert bandwidth.failure is None


async def test_where_requests_keep_coming_it_is_tried_ever_more_seldom(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, HANGS)
    monkeypatch.setattr(ram, "MAX_PAUSE_S", 0.04)
    pauses_s: list[float] = []
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        pauses_s.append(pause_s)
        await sleep(0)

    monkeypatch.setattr("slowtok.proxy.sampling.host.ram.asyncio.sleep", note)
    bandwidth = RamBandwidth(state, is_quiet=lambda: not is_measuring(), is_idle=yes)
    bandwidth.start()
    async with asyncio.timeout(20):
        while len(pauses_s) < 4:
            await sleep(0.005)
    await bandwidth.stop()

    assert pauses_s[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_measurement_that_is_just_being_started_does_not_outlive_the_proxy(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, HANGS)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    starts = asyncio.create_subprocess_exec
    stopping: list[asyncio.Task[list[psutil.Process]]] = []

    others = psutil.Process().children()

    def measurements() -> list[psutil.Process]:
        """Those that only wait to be reaped are among them."""
        return [child for child in psutil.Process().children() if child not in others]

    async def stop() -> list[psutil.Process]:
        while not measurements():  # noqa: ASYNC110 - it has begun, and is not there
            await asyncio.sleep(0)
        await bandwidth.stop()
        return measurements()

    async def start_and_stop(*command: str, **options: Any) -> asyncio.subprocess.Process:
        stopping.append(asyncio.create_task(stop()))
        return await starts(*command, **options)

    monkeypatch.setattr(
        "slowtok.proxy.sampling.host.ram.asyncio.create_subprocess_exec", start_and_stop
    )
    bandwidth.start()
    await until(lambda: bool(stopping) and stopping[0].done())

    assert stopping[0].result() == []


def test_old_number_counts_no_more(state: Path, path: Path) -> None:
    keep(path, age_s=MAX_AGE_S + 60)

    assert RamBandwidth(state, is_quiet=no, is_idle=no).bytes_per_s is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"bytes_per_s": "x"}', b"\xff"])
def test_file_that_cannot_be_read_is_as_none(content: bytes, state: Path, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    assert RamBandwidth(state, is_quiet=no, is_idle=no).bytes_per_s is None


async def test_not_while_requests_are_on_their_way(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, HANGS)
    quiet = Quiet(quiet=False)
    bandwidth = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    await until(lambda: quiet.asked > 3)

    assert not is_measuring()
    await bandwidth.stop()


async def test_gives_way_to_a_request(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, HANGS)
    quiet = Quiet()
    bandwidth = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    await until(lambda: quiet.asked > 1 and is_measuring())
    quiet.quiet = False
    await until(lambda: not is_measuring())

    assert bandwidth.bytes_per_s is None
    assert bandwidth.failure is None
    await bandwidth.stop()


async def test_stop_leaves_no_process_behind(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, HANGS)
    quiet = Quiet()
    bandwidth = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    await until(lambda: quiet.asked > 1 and is_measuring())
    await bandwidth.stop()

    assert not is_measuring()


async def test_beside_other_work_it_is_used_and_measured_again_at_the_next_start(
    state: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, MEASURES)
    monkeypatch.setattr(ram, "PATIENCE_S", 0.0)
    told: list[float] = []
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=no, on_busy=told.append)
    bandwidth.start()
    await until(lambda: bandwidth.bytes_per_s is not None)
    await bandwidth.stop()

    assert bandwidth.is_beside_others
    assert told == [5e10]
    assert RamBandwidth(state, is_quiet=no, is_idle=no).is_beside_others


async def test_measured_again_once_the_others_rest(
    state: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, "print('{\"bytes_per_s\": 1e10}')")
    monkeypatch.setattr(ram, "PATIENCE_S", 0.0)
    rests, told = asyncio.Event(), list[float]()
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=rests.is_set, on_busy=told.append)
    bandwidth.start()
    await until(lambda: bandwidth.bytes_per_s == 1e10)
    measuring(monkeypatch, MEASURES)
    rests.set()
    await until(lambda: bandwidth.bytes_per_s == 5e10)
    await bandwidth.stop()

    assert not bandwidth.is_beside_others
    assert told == [1e10]


async def test_what_was_found_before_a_request_came_counts(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, f"{ONE_WINDOW}\n{HANGS}")
    quiet = Quiet()
    bandwidth = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    await until(lambda: bandwidth.bytes_per_s is not None)
    quiet.quiet = False
    await until(lambda: quiet.asked > 5)
    await bandwidth.stop()

    assert bandwidth.bytes_per_s == 3e10
    assert kept_bytes_per_s(state) == 3e10


async def test_it_goes_on_until_there_were_enough_windows(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, ONE_WINDOW)
    quiet = Quiet()
    bandwidth = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    await until(lambda: told_windows(state) == ENOUGH_WINDOWS)
    await bandwidth.stop()
    asked = quiet.asked
    again = RamBandwidth(state, is_quiet=quiet, is_idle=yes)
    again.start()
    await again.stop()

    assert quiet.asked == asked


async def test_less_never_replaces_more(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = "[print('{\"bytes_per_s\": %d}' % rate) for rate in (4e10, 6e10, 5e10, 1, 2)]"
    measuring(monkeypatch, rates)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await until(lambda: told_windows(state) == ENOUGH_WINDOWS)
    await bandwidth.stop()

    assert bandwidth.bytes_per_s == 6e10


async def test_what_was_given_is_not_measured(
    state: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, MEASURES)
    quiet = Quiet()
    bandwidth = RamBandwidth(state, given_bytes_per_s=6e10, is_quiet=quiet, is_idle=yes)
    bandwidth.start()
    bandwidth.note_read(9e10)
    await bandwidth.stop()

    assert (bandwidth.bytes_per_s, bandwidth.source) == (6e10, "given")
    assert not quiet.asked
    assert not exists(path)


def test_a_faster_decode_raises_what_was_measured_and_a_slower_one_does_not(
    state: Path, path: Path
) -> None:
    keep(path, age_s=60)
    bandwidth = RamBandwidth(state, is_quiet=no, is_idle=no)
    bandwidth.note_read(3e10)
    slower = bandwidth.bytes_per_s
    bandwidth.note_read(5e10)

    assert (slower, bandwidth.bytes_per_s, bandwidth.source) == (4e10, 5e10, "measured")
    assert kept_bytes_per_s(state) == 5e10


def test_a_decode_alone_is_no_measurement(state: Path) -> None:
    bandwidth = RamBandwidth(state, is_quiet=no, is_idle=no)
    bandwidth.note_read(5e10)

    assert bandwidth.bytes_per_s is None


async def test_too_little_memory_is_told_and_tried_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, 'print(\'{"failure": "too little free memory"}\')')
    monkeypatch.setattr(ram, "FAILED_PAUSE_S", 0.005)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await until(lambda: bandwidth.failure is not None)
    said = bandwidth.failure
    measuring(monkeypatch, MEASURES)
    await until(lambda: bandwidth.bytes_per_s is not None)
    await bandwidth.stop()

    assert said == "RAM bandwidth could not be measured: too little free memory"
    assert bandwidth.failure is None


@pytest.mark.parametrize(
    "program", ["", "print('{}')", "print('null')", "print('x')", "raise SystemExit(1)", HANGS]
)
async def test_measurement_that_fails_is_told_and_not_tried_at_once_again(
    program: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, program)
    monkeypatch.setattr(ram, "LIMIT_S", 0.05 if program == HANGS else 10.0)
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await until(lambda: bandwidth.failure is not None)
    await bandwidth.stop()

    assert bandwidth.bytes_per_s is None
    assert not is_measuring()


async def test_program_that_cannot_be_started_is_a_failure(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ram, "COMMAND", ("/nowhere/python",))
    bandwidth = RamBandwidth(state, is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await until(lambda: bandwidth.failure is not None)
    await bandwidth.stop()


async def test_number_that_cannot_be_kept_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring(monkeypatch, MEASURES)
    (tmp_path / "file").touch()
    bandwidth = RamBandwidth(tmp_path / "file", is_quiet=yes, is_idle=yes)
    bandwidth.start()
    await until(lambda: bandwidth.bytes_per_s is not None)
    await bandwidth.stop()
