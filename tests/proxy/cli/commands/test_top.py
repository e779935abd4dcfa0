"""`slowtok top` at a real proxy, with a request on its way."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import SLOWTOK, WAIT_S, environment, run
from fakes.proxy import Served, serving
from fakes.upstream import Upstream, listening
from fakes.wire import SSE, chunk, chunked_head

NOBODY = "127.0.0.1:9"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


@pytest.fixture
async def engine() -> AsyncIterator[Upstream]:
    async with listening("llama-server") as upstream:
        yield upstream


async def one_frame(served: Served, *options: str, columns: int = 80) -> str:
    listen = f"127.0.0.1:{served.port}"
    found = await asyncio.to_thread(
        run, "top", "--once", "--listen", listen, *options, env={"COLUMNS": str(columns)}
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


async def test_shows_a_request_on_its_way(engine: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, engine.url) as served:
        client = await served.connect()
        await client.chat(model="small", stream=True)
        arrival = await engine.next()
        waiting = await one_frame(served)
        await arrival.send(chunked_head(SSE) + chunk(TOKEN) + chunk(TOKEN * 3))
        await client.head()
        await client.chunk()
        decoding = json.loads(await one_frame(served, "--json"))
        frame = await one_frame(served)

    assert "small  waiting" in waiting
    [entry] = decoding["running"]
    assert (entry["phase"], entry["model"]) == ("decode", "small")
    assert entry["tokens"] in (1, 4)
    assert "small  decode" in frame
    assert all(len(row) <= 80 for row in frame.splitlines())


async def test_nothing_runs(engine: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, engine.url) as served:
        assert "nothing runs now" in await one_frame(served)
        status: dict[str, Any] = await served.own("/slowtok/status")

    assert status["running"] == []


def test_nobody_there() -> None:
    found = run("top", "--once", "--listen", NOBODY)

    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"slowtok: no slowtok answers at {NOBODY}")


@pytest.mark.skipif(sys.platform == "win32", reason="there Ctrl-C ends it")
async def test_q_ends_it_and_the_terminal_is_as_before(engine: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, engine.url) as served:
        said, code = await asyncio.to_thread(_in_a_terminal, f"127.0.0.1:{served.port}")

    assert code == 0
    assert b"nothing runs now" in said
    assert said.rstrip().endswith(b"\x1b[?1049l")  # back from the alternate screen


def _in_a_terminal(listen: str) -> tuple[bytes, int]:
    """Run it as if somebody looked on, and press q once it shows something."""
    import pty  # noqa: PLC0415 - not on Windows
    import select  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    ours, theirs = pty.openpty()
    waiting = select.poll()  # unlike select, for descriptors of any number
    waiting.register(ours, select.POLLIN)
    process = subprocess.Popen(
        [*SLOWTOK, "top", "--listen", listen, "--interval", "0.2"],
        stdin=theirs,
        stdout=theirs,
        env={**environment(TERM="xterm-256color"), "COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    said, pressed = b"", False
    try:
        while waiting.poll(WAIT_S * 1000):
            try:
                said += os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not pressed and b"nothing runs now" in said:
                pressed = os.write(ours, b"q") > 0
        return said, process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
