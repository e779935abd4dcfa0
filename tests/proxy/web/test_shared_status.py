"""What the proxy's own pages and commands say of a store, and that a missing one harms nobody."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fakes.commands import run, served
from fakes.proxy import serving
from fakes.upstream import listening
from fakes.wire import JSON, reply, until
from slowtok.proxy.cli.demo.children import free_port
from slowtok.proxy.cli.render.overview import overview

PASSWORD = "h1dden"
CHAT = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def nobody() -> str:
    return f"valkey://:{PASSWORD}@127.0.0.1:{free_port()}/0"


def printed(status: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(overview(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_a_store_that_is_away_is_said_and_requests_go_on(tmp_path: Path) -> None:
    url = nobody()
    async with (
        listening("llama-server") as engine,
        serving(tmp_path, engine.url, baselines_url=url) as proxy,
    ):
        engine.reply = reply(CHAT, JSON)
        client = await proxy.connect()
        await client.ask("POST", "/v1/chat/completions", body=b'{"model":"small","messages":[]}')
        head, body = await client.reply()
        await until(lambda: proxy.proxy.peers is not None and proxy.proxy.peers.failures > 0)
        status = await proxy.own("/slowtok/status")

    assert (head.status, body) == (200, CHAT)
    shared = status["shared_baselines"]
    assert shared["store"] == url.replace(f":{PASSWORD}@", "").replace("/0", "").replace(
        "://", " at "
    )
    assert shared["state"] == "nothing listens there"
    assert shared["failures"] == status["counts"]["failures"]["shared baselines"] >= 1
    [hidden] = [h for h in status["not_visible"] if "same card" in h["fact"]]
    assert hidden["why"].startswith("nothing listens there")
    assert "shared: store valkey at 127.0.0.1:" in printed(status)
    assert PASSWORD not in json.dumps(status) + printed(status)


async def test_nothing_is_said_where_nothing_is_shared(tmp_path: Path) -> None:
    async with listening("llama-server") as engine, serving(tmp_path, engine.url) as proxy:
        status = await proxy.own("/slowtok/status")

    assert status["shared_baselines"] is None
    assert "shared" not in printed(status)


async def test_the_command_begins_and_ends_without_the_store(tmp_path: Path) -> None:
    env = {"SLOWTOK_BASELINES_URL": nobody()}
    async with (
        listening("llama-server") as engine,
        served(tmp_path, "--upstream", engine.url, env=env) as slowtok,
    ):
        await slowtok.address()
        assert await slowtok.end() == 0

    said = "".join((*slowtok.out, *slowtok.err, (tmp_path / "log.jsonl").read_text()))
    assert PASSWORD not in said


def test_a_url_that_cannot_be_used_ends_with_one_line(tmp_path: Path) -> None:
    ended = run(
        "serve", "--listen", "127.0.0.1:0", "--state-dir", str(tmp_path),
        env={"SLOWTOK_BASELINES_URL": f"mysql://user:{PASSWORD}@h"},
    )  # fmt: skip

    assert ended.returncode == 2
    assert ended.stderr == (
        "slowtok: SLOWTOK_BASELINES_URL = *** (from environment): expected a URL that begins with "
        "redis://, rediss://, valkey://, postgresql://\n"
    )
