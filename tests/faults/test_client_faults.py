"""What a client can do wrong, beside a healthy stream; nothing may be left behind.

More on clients that leave is in tests/proxy/relay/test_relay_client_gone.py, on ones that read
slowly in tests/proxy/relay/test_relay_slow_client.py.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fakes.bystander import begin, pass_on, piece, unharmed
from fakes.client import CHAT, Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply, until
from slowtok.proxy.server.listener import KEEPALIVE_IDLE_S, open_listener

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told that")
SMALL_BUFFER_BYTES = 4096
PATIENCE_S = 0.3


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.end_sending])
@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_ends_or_half_closes_frees_its_engine(
    leave: Callable[[Client], None], stream: bool, proxy: Served, engine: Upstream
) -> None:
    """Half a close cannot be told from a whole one before something is written: it is one."""
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        if stream:
            arrived = await begin(engine, client)
            await pass_on(arrived, client, 0)
        else:
            await client.chat(stream=False)
            arrived = await engine.next()
            await arrived.body()

        leave(client)

        await arrived.gone()
        arrived.close()
        client.close()
        assert (await proxy.newest())["ended"] == "client-gone"


async def test_pipelined_requests_are_answered_one_after_the_other(
    proxy: Served, engine: Upstream
) -> None:
    count = 50
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n" * count)
        for turn in range(count):
            arrived = await engine.next()
            assert engine.arrivals.empty(), "the next one waits for this one's reply"
            await arrived.answer(reply(b"%d" % turn))
            assert (await client.reply())[1] == b"%d" % turn
        client.close()


async def test_pipelining_without_end_is_held_back(proxy: Served, engine: Upstream) -> None:
    """What a client asks in advance waits in its own buffers, not in the proxy's memory."""
    async with unharmed(proxy, engine):
        client = await proxy.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
        arrived = await begin(engine, client)
        request = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"

        async def send_on() -> None:
            async with asyncio.timeout(1.0):
                for _ in range(100):
                    await client.send(request * 20_000)

        async def speak_on() -> None:
            for _ in range(1000):
                await arrived.send(chunk(piece(0)))
                await asyncio.sleep(0)

        with pytest.raises(TimeoutError):  # it is not read any more
            await send_on()
        client.reset()  # which is seen with the next token, as nothing of this client is read
        with pytest.raises(ConnectionError):
            await speak_on()
        arrived.close()


async def test_pipelined_requests_of_a_client_that_left_are_not_asked(
    proxy: Served, engine: Upstream
) -> None:
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        asked = engine.count
        await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        arrived = await engine.next()

        client.reset()

        await arrived.gone()
        arrived.close()
        assert engine.count == asked + 1


@asynccontextmanager
async def hasty(tmp_path: Path, engine: Upstream) -> AsyncIterator[Served]:
    """A proxy that does not wait long for a client."""
    async with serving(tmp_path, engine.url, client_timeout_s=PATIENCE_S) as served:
        yield served


@LINUX
@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_takes_nothing_is_given_up(
    stream: bool, engine: Upstream, tmp_path: Path
) -> None:
    async with hasty(tmp_path, engine) as proxy, unharmed(proxy, engine):
        stopped = await proxy.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
        await stopped.chat(stream=stream)
        arrived = await engine.next()
        if stream:
            await arrived.send(chunked_head(SSE) + chunk(piece(0) * 100_000))
            await arrived.gone()
        else:
            await arrived.answer(reply(b'{"a":"' + b"a" * (16 << 20) + b'"}', JSON))
        arrived.close()

        await until(lambda: len(proxy.server.connections) == 1)

        stopped.close()
        assert (await proxy.newest())["ended"] == ("client-gone" if stream else "complete")


@LINUX
async def test_client_that_takes_a_little_now_and_then_is_not_given_up(
    engine: Upstream, tmp_path: Path
) -> None:
    body = piece(0) * 50_000
    async with hasty(tmp_path, engine) as proxy:
        slow = await proxy.connect(receive_buffer_bytes=SMALL_BUFFER_BYTES)
        arrived = await begin(engine, slow)
        sending = asyncio.create_task(arrived.send(chunk(body) + LAST_CHUNK))
        taken = b""
        began_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began_s < 4 * PATIENCE_S:
            await asyncio.sleep(PATIENCE_S / 10)  # a slow client is meant
            taken += await slow.reader.read(SMALL_BUFFER_BYTES)
        await sending
        while not taken.endswith(LAST_CHUNK):
            taken += await slow.reader.read(1 << 20)

    assert taken.count(piece(0)) >= 49_000  # the rest has chunk sizes in between
    assert len(taken) >= len(body)


@pytest.mark.parametrize("path", [CHAT, "/x"])
async def test_client_that_stops_in_its_request_is_given_up(
    path: str, engine: Upstream, tmp_path: Path
) -> None:
    async with hasty(tmp_path, engine) as proxy, unharmed(proxy, engine):
        client = await proxy.connect()
        await client.send(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        if path == "/x":  # it is passed on as it comes
            arrived = await engine.next()
            await arrived.gone()
            arrived.close()

        assert await client.rest() == b""

        assert (await proxy.newest())["ended"] == "client-gone"
        client.close()


@LINUX
def test_a_connection_inherits_what_its_port_was_told() -> None:
    with open_listener("127.0.0.1", 0, 1.5) as port, socket.socket() as client:
        port.listen()
        client.connect(port.getsockname())
        with port.accept()[0] as connection:
            told = [
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE)
            ]

    assert told == [1500, KEEPALIVE_IDLE_S]
