"""A reply that comes faster than it is read; connections that are kept for the next request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from fakes.engine_line import EngineLine
from fakes.engine_pool import in_use, kept
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, chunk, chunked_head, reply
from slowtok.proxy.upstream import KEEPALIVE_S, make_session, send

ASKED = CIMultiDict({"X-Request-Id": "1"})
MANY = 64 * 1024 // 16 + 1  # chunks unread, after which aiohttp's reader pauses


@pytest.mark.parametrize("count", [MANY - 1, MANY, MANY + 1, 3 * MANY])
async def test_what_follows_a_pause_after_many_chunks_is_not_held_back(count: int) -> None:
    """aiohttp's parser takes a pause at a chunk's end only at the next chunk, after the reading."""
    line = EngineLine()
    await line.begin(chunked_head())
    body = b""

    for read in (chunk(b"a") * count, chunk(b"b") + chunk(b"c") + LAST_CHUNK):
        line.receive(read)
        while piece := line.content.read_nowait():
            body += piece

    assert body == b"a" * count + b"bc"
    assert line.content.is_eof()


async def test_a_pause_is_forgotten_with_its_reply() -> None:
    line = EngineLine()
    await line.begin(chunked_head() + chunk(b"a") * MANY)
    assert line.connection.was_paused
    line.content.read_nowait()
    line.receive(LAST_CHUNK)

    line.connection.expect_reply(with_body=True)

    assert not line.connection.was_paused


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session(5.0) as session:
        yield session


async def ask(session: aiohttp.ClientSession, engine: Upstream) -> None:
    """Ask and read the reply, so that its connection is kept."""
    answer = await send(session, engine.url, "GET", "/x", ASKED, None)
    while await answer.content.readany():
        pass


async def test_who_rested_too_long_is_closed_when_nobody_comes(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = reply(b"{}", JSON)
    asking = [asyncio.create_task(ask(session, engine)) for _ in range(2)]
    await asyncio.gather(*asking)
    old, young = kept(session)
    connector: Any = session.connector
    assert connector._closing_old is not None

    old.rested_at_s -= KEEPALIVE_S
    young.rested_at_s -= KEEPALIVE_S / 2
    connector._close_old()
    assert kept(session) == [young]
    assert not old.is_connected()
    assert connector._closing_old.when() == pytest.approx(young.rested_at_s + KEEPALIVE_S, abs=0.01)

    young.rested_at_s -= KEEPALIVE_S
    connector._close_old()
    assert kept(session) == []
    assert connector._closing_old is None
    assert in_use(session) == []


async def test_who_rested_too_long_is_not_used(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = reply(b"{}", JSON)
    await ask(session, engine)
    [old] = kept(session)
    old.rested_at_s -= KEEPALIVE_S + 1.0

    await ask(session, engine)

    [fresh] = kept(session)
    assert fresh is not old
    assert not fresh.was_idle
    assert not old.is_connected()


async def test_own_requests_and_the_sessions_share_what_is_kept(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = reply(b"{}", JSON)
    for _ in range(2):
        await ask(session, engine)
        async with session.get(engine.url, headers=ASKED) as found:
            assert await found.read() == b"{}"

    connections = {(await engine.next()).connection for _ in range(engine.count)}
    assert len(connections) == 1
    assert len(kept(session)) == 1


async def test_session_that_is_closed_keeps_nothing(engine: Upstream) -> None:
    engine.reply = reply(b"{}", JSON)
    async with make_session(5.0) as session:
        await ask(session, engine)
        [connection] = kept(session)
        connector: Any = session.connector
        looking = connector._closing_old
        connector._close()
        connection.rest()  # as at the end of a reply that was being read until then

        assert not any(connector._idle.values())
        assert not connection.is_connected()
        assert looking.cancelled()
