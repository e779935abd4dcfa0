"""What is written can be read by its owner only, whatever the user's umask is."""

import json
import stat
import sys
from pathlib import Path

import pytest

from fakes.client import connect
from fakes.commands import run, started
from fakes.upstream import listening
from fakes.wire import JSON, reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")

OPEN_UMASK = ("sh", "-c", 'umask 0; exec "$@"', "sh")
LOADED = {
    "model": "small",
    "message": {"content": "a"},
    "done": True,
    "load_duration": 5_000_000_000,
    "eval_count": 100,
    "eval_duration": 4_000_000_000,
}
REQUESTS = 30  # more than the smallest log holds: it is rotated


def too_open(directory: Path) -> list[tuple[str, str]]:
    """What there is that others may read, write or enter."""
    found = [directory, *directory.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    return [(path.name, oct(mode)) for path, mode in modes.items() if mode & 0o077]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*")}


async def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    state, cases = tmp_path / "state", tmp_path / "cases"
    options = ("--listen", "127.0.0.1:0", "--state-dir", str(state), "--record", str(cases))
    small = {"SLOWTOK_LOG_MAX_BYTES": "10000"}
    async with (
        listening("ollama") as engine,
        started(
            "serve", *options, "--upstream", engine.url, env=small, within=OPEN_UMASK
        ) as running,
    ):
        engine.reply = reply(json.dumps(LOADED).encode(), JSON)
        client = await connect(int((await running.address()).rpartition(":")[2]))
        for _ in range(REQUESTS):
            await client.chat(target="/api/chat", stream=False)
            await client.reply()
        client.close()
        assert await running.end() == 0
    report = tmp_path / "state" / "report.html"
    assert run("report", "--output", str(report), "--state-dir", str(state)).returncode == 0

    assert too_open(state) == []
    assert too_open(cases) == []
    assert {"log.jsonl", "log.jsonl.1", "learned.sqlite3", "report.html"} <= names(state)
    assert len(names(cases)) == REQUESTS
