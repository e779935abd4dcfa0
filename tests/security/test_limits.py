"""Sizes, counts and times are bounded by settings; what is beyond is refused, the rest goes on."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

from fakes.client import CHAT, Client, connect
from fakes.commands import served
from fakes.proxy import serving
from fakes.recorder import HEALTHY, Recorder
from fakes.wire import JSON, WAIT_S, reply
from security.healthy import works_anew, works_on
from slowtok.proxy.stream.call import MAX_MARKS

LINUX = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")
HALF_A_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-A: "


@pytest.mark.parametrize("size_bytes", [8100, 8300])
async def test_head_is_bounded(size_bytes: int, recorder: Recorder, tmp_path: Path) -> None:
    async with serving(tmp_path, recorder.url, max_head_bytes=8192) as proxy:
        client = await proxy.connect()
        await client.ask("GET", "/x", f"X-A: {'a' * size_bytes}")
        head, _ = await client.reply()

        assert head.status == (200 if size_bytes < 8192 else 400)
        await works_anew(proxy)


async def test_head_is_bounded_as_a_whole(recorder: Recorder, tmp_path: Path) -> None:
    async with serving(tmp_path, recorder.url, max_head_bytes=8192) as proxy:
        client = await proxy.connect()
        await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(5):
            await client.send(b"X-A: " + b"a" * 8000 + b"\r\n")
        head, _ = await client.reply()

        assert (head.status, head.get("connection")) == (431, "close")
        assert await client.rest() == b""
        assert recorder.relayed == []
        await works_anew(proxy)


async def test_body_that_is_read_is_bounded_and_a_larger_one_passes(
    recorder: Recorder, tmp_path: Path
) -> None:
    async with serving(tmp_path, recorder.url, max_body_bytes=1000) as proxy:
        client = await proxy.connect()
        for size_bytes in (10, 5000):
            await client.chat(stream=False, user="a" * size_bytes)
            head, body = await client.reply()
            record = await proxy.record(head.get("slowtok-id"))

            assert (head.status, body) == (200, HEALTHY)
            assert ("model" in record) is (size_bytes < 1000)
        await works_on(client)


async def test_body_that_would_take_long_to_read_passes_unread(
    recorder: Recorder, tmp_path: Path
) -> None:
    """No token of anybody passes while JSON is read."""
    async with serving(tmp_path, recorder.url) as proxy:
        client = await proxy.connect()
        for values, is_read in ((10, True), (MAX_MARKS, False)):
            await client.chat(stream=False, prompt=[7] * values)
            head, body = await client.reply()
            record = await proxy.record(head.get("slowtok-id"))

            assert (head.status, body) == (200, HEALTHY)
            assert ("model" in record) is is_read
        await works_on(client)


async def test_reply_that_is_held_is_bounded_and_a_larger_one_passes(
    recorder: Recorder, tmp_path: Path
) -> None:
    async with serving(tmp_path, recorder.url, max_reply_bytes=1000) as proxy:
        client = await proxy.connect()
        for size_bytes in (10, 5000):
            recorder.engine.reply = reply(b"[" + b"1" * size_bytes + b"]", JSON)
            await client.chat(stream=False)
            head, body = await client.reply()

            assert (head.status, len(body)) == (200, size_bytes + 2)
            assert (head.get("slowtok-verdict") is not None) is (size_bytes < 1000)
        recorder.engine.reply = reply(HEALTHY, JSON)
        await works_on(client)


async def is_served(port: int) -> bool:
    """Ask once. Who is refused may find the connection ended before it has read why."""
    client = await connect(port)
    try:
        await client.ask("GET", "/slowtok/health")
        head, _ = await client.reply()
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    finally:
        client.close()
    return head.status == 200


async def until_served(port: int) -> None:
    """Ask until there is room: a client that left may not have been missed yet."""
    async with asyncio.timeout(WAIT_S):
        while not await is_served(port):  # noqa: ASYNC110 - the refusal itself says "again"
            await asyncio.sleep(0.02)


async def heard(client: Client) -> bytes:
    """What came until the end; a reset is one, where slowtok had not read what was said."""
    with contextlib.suppress(ConnectionError):
        return await client.rest()
    return b""


@LINUX
@pytest.mark.parametrize("said", [b"", HALF_A_HEAD], ids=["nothing", "half a head"])
async def test_who_never_asks_makes_room_for_who_does(
    said: bytes, recorder: Recorder, tmp_path: Path
) -> None:
    env = {"SLOWTOK_MAX_CONNECTIONS": "2", "SLOWTOK_HEAD_TIMEOUT_S": "0.1"}
    async with served(tmp_path, "--upstream", recorder.url, env=env) as running:
        port = int((await running.address()).rpartition(":")[2])
        slow = [await connect(port), await connect(port)]
        for client in slow:
            await client.send(said)
        try:
            await until_served(port)
            assert await heard(slow[0]) == b"", "it had been silent for longest"
            await until_served(port)
        finally:
            for client in slow:
                client.close()
        assert await running.end() == 0


@LINUX
async def test_who_asks_is_not_sent_away_for_being_slow(recorder: Recorder, tmp_path: Path) -> None:
    env = {"SLOWTOK_MAX_CONNECTIONS": "2", "SLOWTOK_HEAD_TIMEOUT_S": "0.1"}
    recorder.engine.reply = None
    async with served(tmp_path, "--upstream", recorder.url, env=env) as running:
        port = int((await running.address()).rpartition(":")[2])
        asking = [await connect(port), await connect(port)]
        for client in asking:
            await client.ask("POST", CHAT, JSON, body=b'{"stream":false}')
        arrived = [await recorder.engine.next() for _ in asking]
        await asyncio.sleep(0.3)  # longer than the head may take
        assert [await is_served(port) for _ in range(3)] == [False] * 3, "there is no room"

        for one in arrived:
            await one.answer(reply(HEALTHY, JSON))
        assert [(await client.reply())[1] for client in asking] == [HEALTHY] * 2
        for client in asking:
            client.close()
        assert await running.end() == 0
