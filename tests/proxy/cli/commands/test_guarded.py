"""A proxy with a key of its own: the commands that ask it have the key, and nobody shows it."""

import asyncio
import sys
from pathlib import Path

import pytest

from fakes.client import connect
from fakes.commands import run, served
from fakes.upstream import Upstream
from fakes.wire import JSON, reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")

KEY = "kiwi-in-the-key"
DONE = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def written(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {path.name: path.read_text("utf-8", "replace") for path in files}


@pytest.mark.parametrize("way", ["environment", "arguments"])
async def test_commands_show_the_key_and_nothing_else_does(
    engine: Upstream, tmp_path: Path, way: str
) -> None:
    engine.reply = reply(DONE, JSON)
    env = {"SLOWTOK_API_KEY": KEY}
    options = ("--api-key", KEY) if way == "arguments" else ()
    given = env if way == "environment" else {}
    said: dict[str, str] = {}
    async with served(tmp_path, "--upstream", engine.url, *options, env=given) as running:
        address = await running.address()
        client = await connect(int(address.rpartition(":")[2]))
        await client.chat(f"Authorization: Bearer {KEY}", stream=False)
        head, _ = await client.reply()
        await client.chat("Authorization: Bearer other", stream=False)
        refused, body = await client.reply()
        client.close()
        for name in ("status", "status --json", "explain", "explain --json"):
            command = [*name.split(), "--listen", address]
            ended = await asyncio.to_thread(run, *command, env=env)
            assert ended.returncode == 0, ended.stderr
            said[name] = ended.stdout
        wrong = await asyncio.to_thread(
            run, "status", "--listen", address, env={"SLOWTOK_API_KEY": "another"}
        )
        without = await asyncio.to_thread(run, "status", "--listen", address)
        assert await running.end() == 0
    said["output"] = "".join([*running.out, *running.err]) + without.stdout + without.stderr
    said |= written(tmp_path)

    assert (head.status, refused.status) == (200, 401)
    assert without.returncode == 1
    assert f"{address} requires an API key: set SLOWTOK_API_KEY" in without.stderr
    assert wrong.returncode == 1
    assert f"the API key that was given is not that of {address}" in wrong.stderr
    assert "log.jsonl" in said
    assert [name for name, text in said.items() if KEY in text] == []
    assert KEY.encode() not in body


def test_doctor_does_not_show_it(engine: Upstream, tmp_path: Path) -> None:
    ended = run(
        "doctor",
        "--upstream",
        "http://127.0.0.1:9",
        "--state-dir",
        str(tmp_path),
        "--json",
        env={"SLOWTOK_API_KEY": KEY},
    )

    assert ended.stdout.startswith("{")
    assert KEY not in ended.stdout + ended.stderr


@pytest.mark.parametrize(("key", "why"), [("two words", "visible ASCII"), ("", "is empty")])
def test_a_key_that_cannot_be_one_is_refused_unseen(key: str, why: str, tmp_path: Path) -> None:
    ended = run("serve", "--api-key", key, "--state-dir", str(tmp_path))

    assert ended.returncode == 2
    assert ended.stderr.startswith("slowtok: api_key = *** (from arguments): ")
    assert why in ended.stderr
    assert "two words" not in ended.stderr
