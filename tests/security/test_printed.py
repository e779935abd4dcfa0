"""Nothing foreign steers a terminal or a browser: names, versions, error texts, a foreign log."""

import json
import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fakes.client import connect
from fakes.commands import run, served
from fakes.records import full_record
from fakes.upstream import listening
from fakes.wire import JSON, reply
from slowtok.proxy.cli.render.console import plain, plain_line, request_line
from slowtok.proxy.cli.render.explanation import explanation

EVIL = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\x00\x7f\u202e\u2028[red]<script>alert(1)</script>"
NOT_TEXT = ("ts", "verdict", "phase", "event", "ended")  # vocabulary and times: parsed, not shown
STYLED = re.compile(r"\x1b\[[0-9;]*m")  # how rich itself colours


def evil(value: Any, name: str = "") -> Any:
    """The same, with something evil at the end of every text in it."""
    if isinstance(value, dict):
        return {key: evil(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [evil(one, name) for one in value]
    return value + EVIL if isinstance(value, str) and name not in NOT_TEXT else value


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are texts in it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from texts(one, (*path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from texts(one, (*path, number))
    elif isinstance(value, str):
        yield path


def rendered(what: RenderableType, *, terminal: bool) -> str:
    out = StringIO()
    Console(file=out, width=200, force_terminal=terminal, highlight=False).print(what)
    return out.getvalue()


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in STYLED.sub("", text).split("\n"))


def test_a_text_is_made_plain() -> None:
    assert not is_harmless(EVIL)
    assert plain(EVIL).isprintable()
    assert is_harmless(plain(EVIL))


@pytest.mark.parametrize("terminal", [True, False])
def test_no_text_of_a_record_steers(*, terminal: bool) -> None:
    record = evil(full_record())
    assert len(list(texts(record))) > 30

    for what in (request_line(record), explanation(record)):
        said = rendered(what, terminal=terminal)
        assert is_harmless(said), repr(said)
        assert "script" in said, "it is shown, only tamed"
    assert plain_line(record).isprintable()


async def test_no_command_prints_what_steers(tmp_path: Path) -> None:
    """An engine whose every word is evil, and a client whose model's name is."""
    name = f"model{EVIL}"
    entry = {"id": name, "object": "model", "owned_by": "llamacpp", "path": EVIL, "meta": {}}
    listed = reply(json.dumps({"data": [entry]}).encode(), JSON, "Server: llama.cpp")
    props = {"build_info": f"b1{EVIL}", "model_path": f"/x{EVIL}", "total_slots": 1}
    error = reply(json.dumps({"error": {"message": EVIL}}).encode(), JSON, status="503 Busy")
    timings = {"prompt_n": 9, "prompt_ms": 5000.0, "predicted_n": 99, "predicted_ms": 9000.0}
    whole = {"model": name, "choices": [{"finish_reason": EVIL}], "timings": timings}
    async with listening("llama-server") as engine:
        engine.looks["/v1/models"] = listed
        engine.looks["/props"] = reply(json.dumps(props).encode(), JSON)
        async with served(tmp_path, "--upstream", engine.url) as running:
            address = await running.address()
            client = await connect(int(address.rpartition(":")[2]))
            for answer in (reply(json.dumps(whole).encode(), JSON), error):
                engine.reply = answer
                await client.chat(model=name, stream=False)
                head, _ = await client.reply()
                await client.ask("GET", f"/slowtok/requests/{head.get('slowtok-id')}")
                await client.reply()
            client.close()
            said = commands(address, engine.url, tmp_path)
            assert await running.end() == 0
    said |= {"serve": "".join(running.out), "serve's errors": "".join(running.err)}

    page = said.pop("report html")
    assert [name for name, text in said.items() if not is_harmless(text)] == []
    assert all("model" in said[name] for name in ("serve", "status", "tail", "explain", "report"))
    assert "<script" not in page
    assert "\x1b" not in page
    log = (tmp_path / "log.jsonl").read_text("utf-8")
    assert "script" in log
    assert is_harmless(log)
    assert all(json.loads(line) for line in log.strip().split("\n"))


def commands(address: str, url: str, state: Path) -> dict[str, str]:
    here, log = ("--listen", address), ("--state-dir", str(state))
    asked: dict[str, tuple[str, ...]] = {
        "status": ("status", *here),
        "top": ("top", "--once", *here),
        "explain": ("explain", *here, *log),
        "tail": ("tail", "--no-follow", *log),
        "report": ("report", *log),
        "report html": ("report", "--format", "html", *log),
        "doctor": ("doctor", "--upstream", url, *log),
        "status json": ("status", "--json", *here),
        "explain json": ("explain", "--json", *here, *log),
        "tail json": ("tail", "--json", "--no-follow", *log),
        "report json": ("report", "--json", *log),
        "doctor json": ("doctor", "--json", "--upstream", url, *log),
    }
    ended = {name: run(*arguments, env={"COLUMNS": "200"}) for name, arguments in asked.items()}
    assert [name for name, e in ended.items() if e.returncode not in (0, 3)] == []
    return {name: e.stdout + e.stderr for name, e in ended.items()}


if sys.platform == "win32":
    pytestmark = pytest.mark.skip(reason="ended by a signal")
