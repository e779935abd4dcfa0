"""SIGTERM: what is on its way may finish, for a while; a second one stops at once."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.bystander import STOP, begin, pass_on, piece
from fakes.client import Client
from fakes.commands import Running, served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")

Connect = Callable[..., Awaitable[Client]]

LONG_S = 60.0  # longer than any test runs
SHORT_S = 0.2
STREAMS = 16  # none of them at one of two workers, which then ends: once in 65,536 runs


WORKERS: dict[str, str] = {}


@pytest.fixture(params=[1, 2], ids=["one process", "workers"])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the proxy be one process, then several, where a test asks for it."""
    monkeypatch.setitem(WORKERS, "SLOWTOK_WORKERS", str(request.param))


@asynccontextmanager
async def serving(engine: Upstream, state_dir: Path, grace_s: float) -> AsyncIterator[Running]:
    settings = {"SLOWTOK_GRACE_S": str(grace_s), **WORKERS}
    async with served(state_dir, "--upstream", engine.url, env=settings) as running:
        yield running


async def port_of(running: Running) -> int:
    return int((await running.address()).rpartition(":")[2])


async def asked_to_stop(running: Running) -> None:
    """Send the signal, and wait until it has been heard."""
    running.process.send_signal(signal.SIGTERM)
    while line := await running.line():
        if line.startswith("stopping  "):
            return
    raise AssertionError(running.out)


@pytest.mark.usefixtures("workers")
async def test_systemd_hears_when_clients_can_come_and_that_the_end_may_take_long(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        async with serving(engine, tmp_path, LONG_S) as running:
            await running.address()
            assert manager.recv(100) == b"READY=1"

            assert await running.end() == 0
            assert b"STOPPING=1\nEXTEND_TIMEOUT_USEC=72000000" in manager.recv(100)


def events(state_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state_dir / "log.jsonl").read_text().splitlines()]


def endings(state_dir: Path) -> list[str]:
    return [event["ended"] for event in events(state_dir) if event["event"] == "request"]


@pytest.mark.usefixtures("workers")
async def test_stream_goes_on_to_its_end(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, LONG_S) as running:
        client = await connect(await port_of(running))
        arrived = await begin(engine, client)
        await asked_to_stop(running)

        for number in range(20):
            await pass_on(arrived, client, number)
        await arrived.send(chunk(STOP) + LAST_CHUNK)
        assert [await client.chunk(), await client.chunk()] == [STOP, b""]
        arrived.over.set()

        assert await running.ended() == 0
        assert running.err == [""]
    assert endings(tmp_path) == ["stop"]
    assert [e["event"] for e in events(tmp_path)] == ["engine-found", "stopping", "request"]


@pytest.mark.usefixtures("workers")
async def test_nobody_new_comes_in_meanwhile(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, LONG_S) as running:
        port = await port_of(running)
        kept = await connect(port)
        await kept.ask("GET", "/slowtok/health")
        assert (await kept.reply())[0].get("connection") is None
        streams = [await begin(engine, await connect(port)) for _ in range(STREAMS)]
        await asked_to_stop(running)

        with pytest.raises(ConnectionRefusedError):
            await connect(port)
        await kept.ask("GET", "/slowtok/health")  # its connection was there before
        head, _ = await kept.reply()
        assert (head.status, head.get("connection")) == (200, "close")
        assert await kept.rest() == b""

        for arrived in streams:
            await arrived.send(chunk(STOP) + LAST_CHUNK)
            arrived.over.set()
        assert await running.ended() == 0


async def test_prompt_that_is_still_coming_is_answered(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, LONG_S) as running:
        port = await port_of(running)
        client = await connect(port)
        body = b'{"model":"small","messages":[]}'
        await client.ask("POST", "/v1/chat/completions", f"Content-Length: {len(body)}")
        await client.send(body[:10])
        other = await connect(port)
        arrived = await begin(engine, other)
        await asked_to_stop(running)

        await client.send(body[10:])
        asked = await engine.next()
        assert await asked.body() == body
        await asked.answer(reply(b"{}", JSON))

        assert (await client.reply())[1] == b"{}"
        await arrived.send(chunk(STOP) + LAST_CHUNK)
        arrived.over.set()
        assert await running.ended() == 0


@pytest.mark.usefixtures("workers")
async def test_large_reply_to_a_slow_client_goes_out_whole(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, LONG_S) as running:
        port = await port_of(running)
        client = await connect(port, receive_buffer_bytes=4096)
        body = b'{"a":"' + b"a" * (8 << 20) + b'"}'
        await client.chat(stream=False)
        await (await engine.next()).answer(reply(body, JSON))
        head = await client.head()
        assert head.status == 200
        await asked_to_stop(running)

        received = await client.reader.readexactly(len(body))

        assert received == body
        assert await running.ended() == 0


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("again", [True, False], ids=["a second signal", "time is up"])
async def test_what_does_not_end_is_cut_off_visibly(
    again: bool, engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, LONG_S if again else SHORT_S) as running:
        port = await port_of(running)
        client = await connect(port)
        arrived = await begin(engine, client)
        waiting = await connect(port)
        await waiting.chat(stream=False)
        asked = await engine.next()
        await asked.body()
        await asked_to_stop(running)
        if again:
            running.process.send_signal(signal.SIGTERM)

        assert LAST_CHUNK not in await client.rest()
        assert await waiting.rest() == b""
        await asyncio.gather(arrived.gone(), asked.gone())
        assert await running.ended() == 0
        assert running.err == [""]
    assert endings(tmp_path) == ["proxy-stopped"] * 2
    told = [(e["event"], e["requests"]) for e in events(tmp_path) if "requests" in e]
    assert told == [("stopping", 2), ("cut-off", 2)]


async def test_stream_to_an_http_1_0_client_is_cut_off_by_a_reset(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with serving(engine, tmp_path, 0) as running:
        client = await connect(await port_of(running))
        await client.ask(
            "POST", "/v1/chat/completions", body=b'{"stream":true}', version="HTTP/1.0"
        )
        arrived = await engine.next()
        await arrived.send(chunked_head(SSE) + chunk(piece(0)))
        await client.head()
        assert await client.reader.readexactly(len(piece(0))) == piece(0)
        running.process.send_signal(signal.SIGTERM)

        with pytest.raises(ConnectionResetError):  # a plain end would look complete
            await client.rest()
        assert await running.ended() == 0


async def test_idle_proxy_stops_at_once(engine: Upstream, tmp_path: Path, connect: Connect) -> None:
    async with serving(engine, tmp_path, LONG_S) as running:
        client = await connect(await port_of(running))  # and says nothing

        assert await running.end() == 0

        assert await client.rest() == b""
        assert not any("stopping" in line for line in running.out)
