"""`slowtok mcp`, asked by the official SDK's client over standard input and output."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from fakes.commands import environment, run
from fakes.logged_runs import NAME, two_runs

NOBODY = "127.0.0.1:9"


@asynccontextmanager
async def agent(*options: str) -> AsyncIterator[Client]:
    """An agent that has started the server."""
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "slowtok.proxy", "mcp", *options],
        env=environment(),
    )
    async with Client(command) as client:
        yield client


async def ask(client: Client, tool: str, **said: Any) -> str:
    answer = await client.call_tool(tool, said)
    assert not answer.is_error, answer.content
    return text_of(answer)


def text_of(answer: Any) -> str:
    (block,) = answer.content
    return str(block.text)


async def test_an_agent_finds_out_why_its_run_was_slow(tmp_path: Path) -> None:
    log = ("--log", str(two_runs(tmp_path)), "--listen", NOBODY)
    async with agent(*log) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "explain_run" in (client.instructions or "")
        assert NAME in await ask(client, "list_runs")
        explained = await ask(client, "explain_run")
        whole = json.loads(await ask(client, "explain_run", run=NAME, as_json=True))
        requests = await ask(client, "list_requests", newest=2)
        request = await ask(client, "explain_request")
        by_id = json.loads(await ask(client, "explain_request", request="night-1", as_json=True))
        lost = await ask(client, "what_to_fix_first", since="2026-01-01", run=NAME)

    assert set(tools) == {
        "list_runs",
        "explain_run",
        "list_requests",
        "explain_request",
        "what_to_fix_first",
        "status",
        "doctor",
        "fit",
    }
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools.values())  # type: ignore[union-attr]
    assert "queued" in explained
    assert whole["fix_first"]["cause"] == "queued"
    assert len(requests.splitlines()) == 2
    assert "queued" in request
    assert by_id["id"] == "night-1"
    assert "queued" in lost


async def test_an_agent_is_told_what_people_are_told(tmp_path: Path) -> None:
    log = ("--log", str(two_runs(tmp_path)), "--listen", NOBODY)
    async with agent(*log) as client:
        answered = await ask(client, "explain_run", run=NAME, as_json=True)

    assert json.loads(answered) == json.loads(run("run", NAME, *log, "--json").stdout)


async def test_what_cannot_be_answered_says_why(tmp_path: Path) -> None:
    async with agent("--log", str(tmp_path / "none.jsonl"), "--listen", NOBODY) as client:
        no_log = await client.call_tool("list_runs", {})
        nobody = await client.call_tool("status", {})
        too_many = await client.call_tool("list_requests", {"newest": 0})

    assert no_log.is_error
    assert f"no log at {tmp_path / 'none.jsonl'}" in text_of(no_log)
    assert nobody.is_error
    assert NOBODY in text_of(nobody)
    assert too_many.is_error


async def test_that_no_request_is_meant_is_said(tmp_path: Path) -> None:
    async with agent("--log", str(two_runs(tmp_path)), "--listen", NOBODY) as client:
        said = await ask(client, "list_requests", model="nobodys")
        as_json = await ask(client, "list_requests", model="nobodys", as_json=True)

    assert said.startswith("no such request in ")
    assert as_json == ""


async def test_a_name_is_never_an_option(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"event":"request","id":"not-to-be-told","verdict":"normal"}\n')
    log = ("--log", str(two_runs(tmp_path)), "--listen", NOBODY)
    async with agent(*log) as client:
        answer = await client.call_tool("explain_request", {"request": f"--log={secret}"})

    assert answer.is_error
    assert "no request with id --log=" in text_of(answer)


async def test_fit_needs_no_slowtok() -> None:
    async with agent() as client:
        told = await ask(client, "fit", model="qwen3-8b", gpu="RTX 3060", quant="Q4_K_M")

    assert "It fits" in told
    assert "decode at" in told


def test_an_option_that_cannot_be_used_is_one_line() -> None:
    ended = run("mcp", "--listen", "nowhere")

    assert ended.returncode == 2
    assert ended.stderr.startswith("slowtok: listen = 'nowhere' (from arguments): ")
