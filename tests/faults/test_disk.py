"""Files that cannot be read or written: they cost what would have been kept, and nothing else.

A full disk is in tests/proxy/cli/commands/test_serve.py,
tests/proxy/outputs and tests/proxy/history.
"""

import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.bystander import WHOLE, next_request_works, unharmed
from fakes.cases import healthy
from fakes.client import Client
from fakes.commands import started
from fakes.learning import kept_at, rate
from fakes.proxy import serving
from fakes.upstream import Upstream
from fakes.wire import JSON, reply, until
from slowtok.proxy.history import database
from slowtok.proxy.history.keys import decode_setup
from slowtok.proxy.history.rates import LearnedRate

Connect = Callable[..., Awaitable[Client]]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no files, even from root")
SETUP = decode_setup(healthy())
GARBAGE = b"\x00\xffgarbage" * 500
KEPT = ("learned.sqlite3", "learned.sqlite3-wal", "ram.json", "models/x.json", "log.jsonl")


async def test_state_directory_full_of_garbage(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    for name in KEPT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(GARBAGE)
    options = ("--listen", "127.0.0.1:0", "--state-dir", str(tmp_path))
    async with started("serve", *options, "--upstream", engine.url) as running:
        port = int((await running.address()).rpartition(":")[2])
        client = await connect(port)
        await next_request_works(engine, client)
        await client.ask("GET", "/slowtok/status")
        status = json.loads((await client.reply())[1])

        assert status["counts"]["failures"] == {}
        assert await running.end() == 0
        assert running.err == [""]
    kept = {entry.name: entry.read_bytes() for entry in files(tmp_path)}
    assert kept["log.jsonl"].startswith(GARBAGE), "added to"
    assert any("damaged" in name for name in kept), "put aside, and not deleted"


@LINUX
async def test_state_directory_that_is_read_only(engine: Upstream, connect: Connect) -> None:
    options = ("--listen", "127.0.0.1:0", "--state-dir", "/proc/slowtok", "--log", "-")
    async with started("serve", *options, "--upstream", engine.url) as running:
        port = int((await running.address(err=True)).rpartition(":")[2])
        client = await connect(port)
        for _ in range(3):
            await next_request_works(engine, client)
        await client.ask("GET", "/slowtok/status")
        counts = json.loads((await client.reply())[1])["counts"]

        assert (counts["failures"], counts["log_lines_lost"]) == ({}, 0)
        assert await running.end() == 0


@LINUX
async def test_log_in_a_read_only_directory_is_said_at_once(engine: Upstream) -> None:
    options = ("--listen", "127.0.0.1:0", "--state-dir", "/proc/slowtok")
    async with started("serve", *options, "--upstream", engine.url) as running:
        assert await running.ended() == 2

    assert running.err[-1].startswith("slowtok: state_dir = '/proc/slowtok' (from arguments): ")
    assert running.err[-1].count("\n") == 1


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A database that another program is writing to and does not let go; until it is told to."""
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    path = tmp_path / "learned.sqlite3"
    kept = kept_at(path)
    kept.add_rate(SETUP, today(150.0))
    kept.close()
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")

        def let_go() -> None:
            other.execute("ROLLBACK")

        yield let_go


async def test_locked_database_costs_what_it_would_have_kept(
    locked: Callable[[], None], engine: Upstream, tmp_path: Path
) -> None:
    async with serving(tmp_path, engine.url) as proxy:
        kept = proxy.proxy.learned
        kept.add_rate(SETUP, today(100.0))
        await asyncio.to_thread(_written, lambda: kept.errors == 1)
        async with unharmed(proxy, engine):
            client = await proxy.connect()
            engine.reply = reply(WHOLE, JSON)
            await client.chat(stream=False)
            assert (await client.reply())[1] == WHOLE
            await engine.next()
            engine.reply = None
            client.close()
        not_visible = (await proxy.own("/slowtok/status"))["not_visible"]
        assert "database is locked" in str(not_visible)
        assert [r.tps for r in kept.rates.of(SETUP)] == [150.0, 100.0], "in memory it is"

        locked()
        kept.add_rate(SETUP, today(101.0))
        await until(lambda: kept.failure is None)

    with closing(sqlite3.connect(tmp_path / "learned.sqlite3")) as reading:
        assert reading.execute("SELECT tps FROM rates ORDER BY id").fetchall() == [
            (150.0,),
            (101.0,),
        ]


def files(directory: Path) -> list[Path]:
    return [entry for entry in directory.iterdir() if entry.is_file()]


def today(tps: float) -> LearnedRate:
    return replace(rate(tps), at_unix_s=time.time())


def _written(true: Callable[[], bool]) -> None:
    """Wait for the writer's thread."""
    pause = threading.Event()
    for _ in range(500):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it was not even tried")
