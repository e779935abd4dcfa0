"""What an engine can do wrong on the wire, beside a healthy stream; nothing may be left behind.

How each failure is worded is in tests/proxy/relay/test_relay_upstream_fails.py.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from fakes.bystander import WHOLE, census, next_request_works, piece, unharmed
from fakes.client import Client
from fakes.engine_pool import kept
from fakes.proxy import Served
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, SSE, WAIT_S, chunk, chunked_head, reply, until

Fault = Callable[[Arrival], Awaitable[None]]
TEXT = piece(0)
FIELD = b"X-Filler: " + b"a" * 100 + b"\r\n"
MAX_BYTES = 32 << 20  # that something endless may send before the test gives up


async def pour(arrived: Arrival, first: bytes, again: bytes) -> None:
    """Send without end, until the proxy has had enough."""
    await arrived.send(first)
    with contextlib.suppress(ConnectionError):
        for _ in range(MAX_BYTES // len(again)):
            await arrived.send(again)
        pytest.fail("it was read without end")


async def dies(arrived: Arrival) -> None:
    arrived.close()


async def resets(arrived: Arrival) -> None:
    arrived.reset()


async def half_closes(arrived: Arrival) -> None:
    arrived.end_sending()
    await arrived.gone()


async def sends_garbage(arrived: Arrival) -> None:
    await arrived.send(b"\x16\x03\x01\x00\xa5" * 20 + b"\r\n\r\n")


async def only_continues(arrived: Arrival) -> None:
    await arrived.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 3)
    arrived.close()


async def endless_field(arrived: Arrival) -> None:
    await pour(arrived, b"HTTP/1.1 200 OK\r\nX-Long: ", b"a" * 60_000)


async def endless_fields(arrived: Arrival) -> None:
    await pour(arrived, b"HTTP/1.1 200 OK\r\n", FIELD * 500)


async def endless_reason(arrived: Arrival) -> None:
    await pour(arrived, b"HTTP/1.1 200 ", b"a" * 60_000)


async def two_lengths(arrived: Arrival) -> None:
    lengths = ("Content-Length: 2", "Content-Length: 20")
    await arrived.send("\r\n".join(["HTTP/1.1 200 OK", *lengths, "", "{}"]).encode())


async def length_of_no_number(arrived: Arrival) -> None:
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\n{}")


async def length_too_long(arrived: Arrival) -> None:
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n" + f"{JSON}\r\n\r\n{{".encode())
    arrived.close()


async def chunk_cut(arrived: Arrival) -> None:
    await arrived.send(chunked_head(JSON) + b"ff\r\n{")
    arrived.close()


async def endless_trailer(arrived: Arrival) -> None:
    await pour(arrived, chunked_head(JSON) + chunk(b"{}") + b"0\r\n", FIELD * 500)


BEFORE_THE_FIRST_BYTE: tuple[Fault, ...] = (
    *(dies, resets, half_closes, sends_garbage, only_continues),
    *(endless_field, endless_fields, endless_reason, two_lengths, length_of_no_number),
    *(length_too_long, chunk_cut, endless_trailer),
)


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_BYTE)
async def test_whole_reply_becomes_an_error(fault: Fault, proxy: Served, engine: Upstream) -> None:
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        await client.chat(stream=False)
        arrived = await engine.next()
        await arrived.body()

        await fault(arrived)

        head, _ = await client.reply()
        assert head.status == 502
        record = await proxy.record(head.get("slowtok-id"))
        assert (record["ended"], record["status"]) == ("upstream-error", 502)
        arrived.close()
        await next_request_works(engine, client)
        client.close()


async def truncates_a_chunk(arrived: Arrival) -> None:
    await arrived.send(b"ff\r\ndata: {")
    arrived.close()


async def sends_no_size(arrived: Arrival) -> None:
    await arrived.send(b"zz\r\n")


async def endless_extension(arrived: Arrival) -> None:
    await arrived.send(b"5;")
    with contextlib.suppress(ConnectionError):  # nobody listens to the end of it
        for _ in range(100):
            await arrived.send(b"a" * 60_000)
    arrived.close()


IN_THE_MIDDLE: tuple[Fault, ...] = (
    *(dies, resets, half_closes, truncates_a_chunk, sends_no_size, endless_extension),
)


@pytest.mark.parametrize("fault", IN_THE_MIDDLE)
async def test_stream_ends_visibly_broken(fault: Fault, proxy: Served, engine: Upstream) -> None:
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        await client.chat()
        arrived = await engine.next()
        await arrived.send(chunked_head(SSE) + chunk(TEXT))
        head = await client.head()
        assert await client.chunk() == TEXT

        await fault(arrived)

        assert b"0\r\n\r\n" not in await client.rest()
        record = await proxy.record(head.get("slowtok-id"))
        assert (record["ended"], record["status"]) == ("upstream-error", 200)
        arrived.close()
        client.close()


async def ask(client: Client, engine: Upstream) -> Arrival:
    """Ask for what nobody looks at: else a look at the engine may take the kept connection."""
    await client.ask("POST", "/x", body=b"{}")
    return await engine.next()


@pytest.mark.parametrize("together", [True, False], ids=["at once", "later"])
async def test_what_is_said_too_much_is_nobodys_answer(
    together: bool, proxy: Served, engine: Upstream
) -> None:
    """A wrong Content-Length: what follows looks like another reply, and must not become one."""
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        first = await ask(client, engine)
        too_much = reply(b'{"secret":"of somebody else"}', JSON)
        await first.answer(reply(WHOLE, JSON) + too_much * together)
        assert (await client.reply())[1] == WHOLE
        if not together:
            await first.send(too_much)
            await until(lambda: is_spoken_on(proxy))

        await client.chat(stream=False)
        second = await engine.next()
        assert second.connection != first.connection
        await second.answer(reply(WHOLE, JSON))

        assert (await client.reply())[1] == WHOLE
        first.close()
        client.close()


def is_spoken_on(proxy: Served) -> bool:
    """Say whether a connection that is kept for later has got something."""
    return any(connection.should_close for connection in kept(proxy.proxy.session))


async def test_kept_connection_that_was_spoken_on_is_no_excuse_to_send_twice(
    proxy: Served, engine: Upstream
) -> None:
    """The fresh one that takes its place breaks for a reason of its own: that is no stale one."""
    client = await proxy.connect()
    first = await ask(client, engine)
    await first.answer(reply(WHOLE, JSON))
    await client.reply()
    await first.send(reply(b"{}", JSON))
    await until(lambda: is_spoken_on(proxy))

    second = await ask(client, engine)
    await second.body()
    second.close()

    assert (await client.reply())[0].status == 502
    assert engine.count == 2


async def test_silent_engine_is_waited_for_until_the_client_leaves(
    proxy: Served, engine: Upstream
) -> None:
    """A long prefill is silent, too: only a client knows how long it wants to wait."""
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        await client.chat()
        arrived = await engine.next()
        await arrived.send(b"HTTP/1.1 100 Continue\r\n\r\n")

        client.close()

        async with asyncio.timeout(WAIT_S):
            await arrived.gone()
        arrived.close()
        assert (await proxy.newest())["ended"] == "client-gone"


async def test_hundred_faults_leave_nothing(proxy: Served, engine: Upstream) -> None:
    async with unharmed(proxy, engine):
        for turn in range(100):
            client = await proxy.connect()
            await client.chat(stream=bool(turn % 2))
            arrived = await engine.next()
            await BEFORE_THE_FIRST_BYTE[turn % 5](arrived)
            await client.reply()
            arrived.close()
            client.close()
    assert census(proxy)[2:6] == (0, 0, 0, 0)
