"""The way to an engine: kept connections that turn out dead, and how failures are named."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from fakes.client import CHAT, Client
from fakes.proxy import Served, serving
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, SSE, chunk, chunked_head, reply
from slowtok.proxy.upstream.client import KEEPALIVE_S, UpstreamError, make_session, send

ENGINES_KEEP_S = 5.0  # llama-server and vLLM; see upstream.py
CLOSE_OR_RESET = pytest.mark.parametrize("end", [Arrival.close, Arrival.reset])
REPLY = reply(b"{}", JSON)


async def keep_one(engine: Upstream, client: Client) -> Arrival:
    """Make the proxy keep one idle connection; return what last came over it."""
    await client.chat(stream=False)
    arrived = await engine.next()
    await arrived.answer(REPLY)
    await client.reply()
    return arrived


async def keep_plain_one(engine: Upstream, client: Client) -> None:
    """Make the proxy keep an idle connection; no look at the engine follows, that would take it."""
    await client.ask()
    await (await engine.next()).answer(REPLY)
    await client.reply()


async def asked_on_a_kept_one(engine: Upstream, client: Client, body: bytes) -> Arrival:
    """Ask until a kept connection is used: a client may come back before its last one is free."""
    kept = await keep_one(engine, client)
    while True:
        await client.ask("POST", CHAT, body=body)
        arrived = await engine.next()
        if arrived.connection == kept.connection:
            return arrived
        await arrived.answer(REPLY)
        await client.reply()
        kept = arrived


@CLOSE_OR_RESET
@pytest.mark.parametrize("body", [b"", b'{"stream":false}', b'{"a":"' + b"a" * (1 << 20) + b'"}'])
async def test_connection_that_dies_as_it_is_used_is_replaced(
    body: bytes, end: Any, engine: Upstream, client: Client
) -> None:
    stale = await asked_on_a_kept_one(engine, client, body)
    end(stale)

    again = await engine.next()
    assert again.connection != stale.connection
    assert await again.body() == body
    await again.answer(REPLY)
    assert (await client.reply())[0].status == 200


async def test_request_is_sent_again_once_and_over_a_fresh_connection(
    proxy: Served, engine: Upstream
) -> None:
    """However many are kept: a prompt that brings the engine down would be run for each of them."""
    clients = [await proxy.connect() for _ in range(3)]
    for client in clients:
        await client.chat(stream=False)
    arrivals = [await engine.next() for _ in clients]
    for arrived in arrivals:
        await arrived.answer(REPLY)
    for client in clients:
        await client.reply()
    kept = {arrived.connection for arrived in arrivals}
    assert len(kept) == 3

    await clients[0].chat(stream=False)
    arrived = await engine.next()
    assert arrived.connection in kept
    arrived.close()
    arrived = await engine.next()
    assert arrived.connection not in kept
    arrived.close()

    assert (await clients[0].reply())[0].status == 502
    assert engine.count == 5


@CLOSE_OR_RESET
async def test_connection_that_died_while_idle_is_not_used(
    end: Any, engine: Upstream, client: Client, proxy: Served
) -> None:
    kept = await keep_one(engine, client)
    end(kept)
    await proxy.own("/slowtok/health")  # by then the proxy has heard of it

    await client.chat(stream=False)
    arrived = await engine.next()
    await arrived.answer(REPLY)

    assert arrived.connection != kept.connection
    assert (await client.reply())[0].status == 200


async def test_begun_head_on_a_kept_connection_is_not_sent_again(
    engine: Upstream, client: Client
) -> None:
    await keep_one(engine, client)
    await client.chat(stream=False)
    arrived = await engine.next()
    await arrived.body()
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    arrived.close()

    assert (await client.reply())[0].status == 502
    assert engine.count == 2


async def test_upload_that_is_here_is_sent_again(engine: Upstream, client: Client) -> None:
    await keep_plain_one(engine, client)
    await client.ask("PUT", "/blob", body=b"kept until there is a reply")
    (await engine.next()).close()
    again = await engine.next()

    assert await again.body() == b"kept until there is a reply"
    await again.answer(reply(b"{}", JSON))
    assert (await client.reply())[0].status == 200


async def test_streamed_upload_is_not_sent_again(engine: Upstream, client: Client) -> None:
    await keep_plain_one(engine, client)
    await client.send(b"PUT /blob HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ngone ")
    arrived = await engine.next()
    await client.send(b"with")
    await arrived.body()
    arrived.close()

    assert (await client.reply())[0].status == 502
    assert engine.count == 2


@CLOSE_OR_RESET
async def test_end_of_a_connection_is_no_complaint(
    end: Any, engine: Upstream, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await keep_one(engine, client)
    end(kept)
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(b"data: {}\n\n"))
    await client.head()
    end(arrived)
    await client.rest()

    gc.collect()
    await asyncio.sleep(0)
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_session_keeps_connections_for_less_than_the_engines() -> None:
    async with make_session(1.0) as session:
        connector = session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        assert connector._keepalive_timeout == KEEPALIVE_S < ENGINES_KEEP_S
        assert connector.limit == 0  # requests wait at the engine, where the queue can be seen


async def test_session_waits_for_an_answer_without_limit() -> None:
    async with make_session(1.5) as session:
        timeout = session.timeout
        assert (timeout.total, timeout.sock_read, timeout.connect) == (None, None, None)
        assert timeout.sock_connect == 1.5


async def test_name_that_does_not_resolve_is_said() -> None:
    async with make_session(5.0) as session:
        with pytest.raises(UpstreamError) as caught:
            await send(session, "http://engine.invalid:1", "GET", "/", CIMultiDict(), None)

    assert (caught.value.status, caught.value.ended) == (502, "upstream-refused")
    assert "http://engine.invalid:1 cannot be reached" in caught.value.failed


async def test_path_of_the_upstream_url_comes_first(engine: Upstream, tmp_path: Path) -> None:
    engine.reply = REPLY
    async with serving(tmp_path, f"{engine.url}/engine/a/") as proxy:
        client = await proxy.connect()
        await client.ask("GET", "/v1/x?y=%20")
        await client.reply()

    assert (await engine.next()).head.target == "/engine/a/v1/x?y=%20"
