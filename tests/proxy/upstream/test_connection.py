"""A reply that comes faster than it is read; connections that are kept for the next request."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import aiohttp
import pytest
from multidict import CIMultiDict

from fakes.engine_line import EngineLine
from fakes.engine_pool import in_use, kept
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, chunk, chunked_head, reply
from slowtok.proxy.upstream.client import KEEPALIVE_S, make_session, send
from slowtok.proxy.upstream.connection import READ_BUFFER_BYTES
from slowtok.proxy.upstream.fair_reads import SLICE_BYTES, SLICES_PER_TURN, FairReads

ASKED = CIMultiDict({"X-Request-Id": "1"})


async def test_reply_that_is_not_read_holds_the_engine_back() -> None:
    line = EngineLine()
    await line.begin(chunked_head())
    piece = b"a" * (SLICE_BYTES // 2)

    for _ in range(2 * READ_BUFFER_BYTES // len(piece) + 1):
        line.receive(chunk(piece))
    assert line.is_paused

    assert len(line.content.read_nowait()) > 2 * READ_BUFFER_BYTES
    assert not line.is_paused


@pytest.mark.parametrize("body", [chunk(b"abc"), chunk(b"a" * SLICE_BYTES)])
async def test_event_loop_may_deliver_bytearrays(body: bytes) -> None:
    line = EngineLine()
    await line.begin(cast("bytes", bytearray(chunked_head())))
    line.receive(cast("bytes", bytearray(body)))
    line.receive(cast("bytes", bytearray(LAST_CHUNK)))
    assert chunk(await line.content.read()) == body
    assert line.ended() == "complete"


async def test_many_bytes_take_turns() -> None:
    """Two slices go on in a turn, whoever they are from; a token passes at once."""
    turns = FairReads(asyncio.get_running_loop())
    fast = [EngineLine(turns) for _ in range(4)]
    for line in fast:
        await line.begin(chunked_head())
    slow = EngineLine(turns)
    await slow.begin(chunked_head())
    many = chunk(b"a" * (2 * SLICE_BYTES))

    for line in fast:
        line.receive(many)
    assert [bool(line.content.total_bytes) for line in fast] == [True, False, False, False]
    assert all(line.is_paused for line in fast)
    slow.receive(chunk(b"b"))
    assert slow.content.read_nowait() == b"b"

    passed_bytes = [sum(line.content.total_bytes for line in fast)]
    for _ in range(10):
        await asyncio.sleep(0)
        passed_bytes.append(sum(line.content.total_bytes for line in fast))
    steps = [after - before for before, after in pairwise(passed_bytes)]
    assert max(steps) <= SLICES_PER_TURN * SLICE_BYTES
    assert [line.content.total_bytes for line in fast] == [2 * SLICE_BYTES] * 4
    assert not any(line.is_paused for line in fast)


@pytest.mark.parametrize("ends", ["well", "in the middle"])
async def test_what_waits_for_its_turn_is_not_lost_with_the_connection(ends: str) -> None:
    line = EngineLine()
    await line.begin(chunked_head())
    piece = b"a" * (3 * SLICE_BYTES)
    line.receive(chunk(piece) + (LAST_CHUNK if ends == "well" else b""))

    assert line.ended() == ("complete" if ends == "well" else "cut off")
    assert line.content.total_bytes == len(piece)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session(5.0) as session:
        yield session


async def ask(session: aiohttp.ClientSession, engine: Upstream) -> None:
    """Ask and read the reply, so that its connection is kept."""
    answer = await send(session, engine.url, "GET", "/x", ASKED, None)
    while await answer.content.readany():
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such read")
async def test_answer_of_an_engine_that_wants_no_more_of_a_request_is_read(
    session: aiohttp.ClientSession,
) -> None:
    """It answers and hangs up with bytes unread: to write fails before anything was read."""
    with socket.create_server(("127.0.0.1", 0)) as port:

        async def body() -> AsyncIterator[bytes]:
            yield b"a"
            line, _ = port.accept()
            line.sendall(reply(b"too large", status="413 Content Too Large"))
            line.close()
            yield b"a"
            yield b"a"

        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        answer = await send(session, url, "POST", "/x", ASKED, body())

    assert answer.status == 413
    assert await answer.content.read() == b"too large"
    assert kept(session) == []


async def test_who_rested_too_long_is_closed_when_nobody_comes(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = reply(b"{}", JSON)
    asking = [asyncio.create_task(ask(session, engine)) for _ in range(2)]
    await asyncio.gather(*asking)
    old, young = kept(session)
    connector: Any = session.connector
    assert connector._expiry_timer is not None

    old.idle_since_s -= KEEPALIVE_S
    young.idle_since_s -= KEEPALIVE_S / 2
    connector._close_expired()
    assert kept(session) == [young]
    assert not old.connected
    assert connector._expiry_timer.when() == pytest.approx(
        young.idle_since_s + KEEPALIVE_S, abs=0.01
    )

    young.idle_since_s -= KEEPALIVE_S
    connector._close_expired()
    assert kept(session) == []
    assert connector._expiry_timer is None
    assert in_use(session) == []


async def test_who_rested_too_long_is_not_used(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = reply(b"{}", JSON)
    await ask(session, engine)
    [old] = kept(session)
    old.idle_since_s -= KEEPALIVE_S + 1.0

    await ask(session, engine)

    [fresh] = kept(session)
    assert fresh is not old
    assert not fresh.was_idle
    assert not old.connected


async def test_own_requests_and_the_sessions_share_no_connection(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    """What an engine says too much of itself is nobody's answer."""
    engine.reply = reply(b"{}", JSON)
    for _ in range(2):
        await ask(session, engine)
        async with session.get(engine.url, headers=ASKED) as found:
            assert await found.read() == b"{}"

    connections = [(await engine.next()).connection for _ in range(engine.count)]
    assert connections[::2] == [connections[0]] * 2
    assert connections[1::2] == [connections[1]] * 2
    assert len(set(connections)) == 2


@pytest.mark.parametrize("path", ["of the session", "of ours"])
async def test_what_ends_with_its_connection_is_whole_however_much(
    path: str, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    """The end is heard while most of it still waits for its turn."""
    body = b"a" * (10 * SLICE_BYTES)
    engine.reply = reply(body, JSON, "Connection: close")

    if path == "of ours":
        answer = await send(session, engine.url, "GET", "/x", ASKED, None)
        found = b"".join([piece async for piece in answer.content.iter_any()])
    else:
        async with session.get(engine.url, headers=ASKED) as looked:
            found = await looked.read()

    assert found == body


async def test_session_that_is_closed_keeps_nothing(engine: Upstream) -> None:
    engine.reply = reply(b"{}", JSON)
    async with make_session(5.0) as session:
        await ask(session, engine)
        [connection] = kept(session)
        connector: Any = session.connector
        looking = connector._expiry_timer
        await connector.close()
        connection.release()  # as at the end of a reply that was being read until then

        assert kept(session) == []
        assert not connection.connected
        assert looking.cancelled()
