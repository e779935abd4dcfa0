"""A client that goes away: its request at the engine ends at once, and nobody else's does."""

import asyncio
from collections.abc import Callable

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply, until

# The promise is 0.1 s. On a machine that runs other tests too, a scheduler's pause must not fail
# it; without the cancelling, the engine would not be left at all.
AT_ONCE_S = 1.0
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
LEAVE = pytest.mark.parametrize("leave", [Client.close, Client.reset])


@LEAVE
@pytest.mark.parametrize("stream", [True, False])
async def test_during_prefill(
    leave: Callable[[Client], None],
    stream: bool,
    proxy: Served,
    engine: Upstream,
    client: Client,
) -> None:
    await client.chat(stream=stream)
    arrived = await engine.next()
    await arrived.body()  # the engine has it all, and thinks

    left_at_s = asyncio.get_running_loop().time()
    leave(client)

    assert await arrived.gone() - left_at_s < AT_ONCE_S
    record = await proxy.newest()
    assert record["ended"] == "client-gone"
    assert "status" not in record
    assert "ttft_ms" not in record["timing"]


@LEAVE
async def test_between_head_and_first_token(
    leave: Callable[[Client], None], proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()

    left_at_s = asyncio.get_running_loop().time()
    leave(client)

    assert await arrived.gone() - left_at_s < AT_ONCE_S
    record = await proxy.newest()
    assert (record["ended"], record["status"]) == ("client-gone", 200)


@LEAVE
async def test_during_decode(
    leave: Callable[[Client], None], proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    await client.head()
    assert await client.chunk() == TEXT

    left_at_s = asyncio.get_running_loop().time()
    leave(client)

    assert await arrived.gone() - left_at_s < AT_ONCE_S
    record = await proxy.newest()
    assert (record["ended"], record["status"]) == ("client-gone", 200)
    assert record["timing"]["ttft_ms"] > 0


@LEAVE
@pytest.mark.parametrize("framing", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
async def test_during_a_streamed_upload(
    leave: Callable[[Client], None], framing: str, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.send(f"PUT /blob HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
    await client.send(chunk(b"a part"))
    arrived = await engine.next()
    await arrived.receive()

    left_at_s = asyncio.get_running_loop().time()
    leave(client)

    assert await arrived.gone() - left_at_s < AT_ONCE_S
    assert (await proxy.newest())["ended"] == "client-gone"


@LEAVE
async def test_during_the_upload_of_a_prompt(
    leave: Callable[[Client], None], proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.send(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode()
    )
    await until(lambda: proxy.proxy.observer.in_flight)

    leave(client)

    assert (await proxy.newest())["ended"] == "client-gone"
    assert engine.count == 0


@LEAVE
async def test_with_a_backlog_that_it_never_took(
    leave: Callable[[Client], None], proxy: Served, engine: Upstream
) -> None:
    client = await proxy.connect(receive_buffer_bytes=4096)
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()
    for _ in range(64):
        await arrived.send(chunk(TEXT * 1000))

    leave(client)

    await arrived.gone()
    assert (await proxy.newest())["ended"] == "client-gone"


async def test_others_stream_on(proxy: Served, engine: Upstream, client: Client) -> None:
    other = await proxy.connect()
    await client.chat()
    leaving = await engine.next()
    await other.chat()
    staying = await engine.next()
    for arrived, reader in ((leaving, client), (staying, other)):
        await arrived.send(chunked_head(SSE))
        await reader.head()

    client.reset()
    await leaving.gone()

    await staying.send(chunk(TEXT) + LAST_CHUNK)
    assert await other.chunk() == TEXT
    assert await other.chunk() == b""


async def test_a_kept_connection_that_closes_is_no_request(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"{}", JSON)
    await client.chat(stream=False)
    await client.reply()
    client.close()

    other = await proxy.connect()
    await other.chat(stream=False)
    await other.reply()

    records = await proxy.own("/slowtok/requests")
    assert len(records) == 2
    assert {record["ended"] for record in records} == {"complete"}


@LEAVE
async def test_after_the_last_word_it_ended_as_the_engine_said(
    leave: Callable[[Client], None], proxy: Served, engine: Upstream, client: Client
) -> None:
    """Clients hang up at [DONE], before the engine has sent its last, empty chunk."""
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    await client.head()
    assert await client.chunk() == TEXT
    await arrived.send(chunk(STOP))
    assert await client.chunk() == STOP

    leave(client)

    assert await arrived.gone()
    assert (await proxy.newest())["ended"] == "stop"


async def test_a_client_that_waited_in_vain_has_waited(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.chat(stream=False)
    arrived = await engine.next()
    waited_from_s = asyncio.get_running_loop().time()
    await asyncio.sleep(0.05)

    client.close()

    waited_s = await arrived.gone() - waited_from_s
    record = await proxy.newest()
    assert record["ended"] == "client-gone"
    assert record["timing"]["total_ms"] >= waited_s * 1000 * 0.9
