"""A client that does not read: the engine is read on up to a bound, and nobody else waits."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp.web_protocol import RequestHandler

from fakes.client import Client
from fakes.proxy import Served
from fakes.upstream import Arrival, Upstream
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head, until
from slowtok.proxy.relay.backpressure import CLIENT_BACKLOG_BYTES

STREAM_BYTES = 20 << 20
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"a" * 1000)
BLOCK = EVENT * 60
BLOCKS = STREAM_BYTES // len(BLOCK)
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
SMALL_BUFFER_BYTES = 4096  # of the kernel's, so that little stands between the two
READ_BUFFERS_BYTES = 512 * 1024  # what one read of the engine may add on top of the backlog


@pytest.fixture
async def full(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Future[Any]":
    """The client's transport, as soon as the proxy may write no more to it."""
    paused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pause = RequestHandler.pause_writing

    def note(self: RequestHandler) -> None:
        pause(self)
        if not paused.done():
            paused.set_result(self.transport)

    monkeypatch.setattr(RequestHandler, "pause_writing", note)
    return paused


async def pour(arrived: Arrival) -> None:
    """Stream 20 MB as fast as they are taken."""
    arrived.shrink_buffer(SMALL_BUFFER_BYTES)
    await arrived.send(chunked_head(SSE))
    for _ in range(BLOCKS):
        await arrived.send(chunk(BLOCK), limit_s=30)
    await arrived.send(chunk(LAST) + LAST_CHUNK)


async def test_backlog_is_bounded_and_taken_later(
    full: "asyncio.Future[Any]", proxy: Served, engine: Upstream
) -> None:
    slow = await proxy.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
    await slow.chat()
    arrived = await engine.next()
    pouring = asyncio.create_task(pour(arrived))
    async with asyncio.timeout(20):
        transport = await full
    assert transport.get_write_buffer_size() > CLIENT_BACKLOG_BYTES

    await others_are_not_delayed(proxy, engine)
    assert transport.get_write_buffer_size() < CLIENT_BACKLOG_BYTES + READ_BUFFERS_BYTES
    assert not pouring.done()  # the engine is held back now

    head, body = await slow.reply()
    await pouring
    assert body == BLOCK * BLOCKS + LAST
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "stop"
    timeline = proxy.cases[-1].timeline
    assert 0 < timeline.client_blocked_s < (timeline.delivered_at_s or 0) - timeline.accepted_at_s


async def test_time_until_the_client_has_it_all_is_delivery(
    proxy: Served, engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.relay.backpressure.CLIENT_BACKLOG_BYTES", 16 << 20)
    slow = await proxy.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
    await slow.chat()
    arrived = await engine.next()
    blocks = (8 << 20) // len(BLOCK)  # more than a kernel buffers, less than the proxy does
    await arrived.send(chunked_head(SSE) + chunk(BLOCK) * blocks + chunk(LAST) + LAST_CHUNK)
    (exchange,) = proxy.proxy.observer._live.values()
    await until(lambda: exchange.last_byte_at_s is not None)
    engine_done_at_s = time.monotonic()

    head, body = await slow.reply()

    assert len(body) == len(BLOCK) * blocks + len(LAST)
    await proxy.record(head.get("slowtok-id"))
    timeline = proxy.cases[-1].timeline
    assert (timeline.last_byte_at_s or 0) <= engine_done_at_s < (timeline.delivered_at_s or 0)
    assert timeline.client_blocked_s > 0


async def test_client_that_reads_is_not_called_slow(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = chunked_head(SSE) + chunk(EVENT) + chunk(LAST) + LAST_CHUNK

    await client.chat()
    head, _ = await client.reply()
    await proxy.record(head.get("slowtok-id"))

    assert proxy.cases[-1].timeline.client_blocked_s == 0


async def others_are_not_delayed(proxy: Served, engine: Upstream) -> None:
    other = await proxy.connect()
    await other.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await other.head()
    for _ in range(20):
        await arrived.send(chunk(EVENT))
        assert await other.chunk() == EVENT
    await arrived.send(chunk(LAST) + LAST_CHUNK)
    assert await other.chunk() == LAST
