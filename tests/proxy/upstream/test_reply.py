"""A reply's connection: given back when all is there, closed where anything is left of it."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from multidict import CIMultiDict

from fakes.engine_pool import in_use, kept
from fakes.full_port import full_port
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, LAST_CHUNK, WAIT_S, chunk, chunked_head, reply, until
from slowtok.proxy.upstream import connector
from slowtok.proxy.upstream.client import UpstreamError, make_session, send
from slowtok.proxy.upstream.reply import EngineReply
from slowtok.proxy.upstream.reply import ask as ask_engine
from slowtok.proxy.upstream.reply_head import BadReply
from slowtok.proxy.upstream.request import PIECE_BYTES, Body, make_request

Ask = Callable[..., "asyncio.Task[EngineReply]"]
REPLY = reply(b"{}", JSON)
LARGE = b"a" * (64 << 20)  # more than two sockets hold


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session(5.0) as session:
        yield session


@pytest.fixture
def ask(session: aiohttp.ClientSession, engine: Upstream) -> Ask:
    def begin(body: Body = b"{}", method: str = "POST") -> "asyncio.Task[EngineReply]":
        headers = CIMultiDict({"X-Request-Id": "1"})
        return asyncio.create_task(send(session, engine.url, method, "/x", headers, body))

    return begin


def counts(session: aiohttp.ClientSession) -> tuple[int, int]:
    """How many connections are in use, and how many are kept for later."""
    return len(in_use(session)), len(kept(session))


async def read(answer: EngineReply) -> bytes:
    pieces = []
    while piece := await answer.content.readany():
        pieces.append(piece)
    return b"".join(pieces)


async def answered(ask: Ask, engine: Upstream, said: bytes = REPLY, **asked: Any) -> EngineReply:
    task = ask(**asked)
    await (await engine.next()).answer(said)
    return await task


BODILESS = (
    ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"),
    ("POST", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ("POST", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n"),
    ("POST", REPLY),
)


@pytest.mark.parametrize(("method", "said"), BODILESS)
async def test_connection_is_kept_before_the_reply_is_left(
    method: str, said: bytes, ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    with (answer := await answered(ask, engine, said, method=method)):
        await read(answer)
        assert counts(session) == (0, 1)

    await answered(ask, engine)
    assert counts(session) == (0, 1)


@pytest.mark.parametrize(
    "said", [b"", chunk(b"a"), chunk(b"a") + b"5\r\nhell"], ids=["no piece", "a piece", "part"]
)
async def test_reply_left_early_costs_its_connection(
    said: bytes, ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    task = ask()
    arrived = await engine.next()
    await arrived.send(chunked_head(JSON) + said)
    with await task:
        assert counts(session) == (1, 0)

    assert counts(session) == (0, 0)
    await arrived.gone()


async def test_reply_that_nobody_read_has_given_its_connection_back(
    ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    with await answered(ask, engine, chunked_head(JSON) + chunk(b"a") + LAST_CHUNK):
        pass

    assert counts(session) == (0, 1)


async def test_connection_that_is_to_close_is_not_kept(
    ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    answer = await answered(ask, engine, reply(b"{}", JSON, "Connection: close"))

    assert await read(answer) == b"{}"
    assert counts(session) == (0, 0)


async def test_reply_until_the_connection_ends(ask: Ask, engine: Upstream) -> None:
    task = ask()
    arrived = await engine.next()
    await arrived.send(b"HTTP/1.1 200 OK\r\n\r\nall ")
    await arrived.send(b"of it")
    arrived.close()

    assert await read(await task) == b"all of it"


@pytest.mark.parametrize("said", [b"H", b"HTTP/1.1 200 OK\r\nContent-", REPLY, b"\r\n"])
async def test_word_said_unasked_costs_the_connection(
    said: bytes, ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    task = ask()
    first = await engine.next()
    await first.answer(REPLY)
    await task
    [waiting] = kept(session)
    assert not waiting.should_close
    await first.send(said)
    await until(lambda: waiting.should_close)

    task = ask()
    second = await engine.next()
    await second.answer(REPLY)

    assert second.connection != first.connection
    assert await read(await task) == b"{}"
    await first.gone()


SPOILED = {
    "length": reply(b"{}", JSON),
    "chunks": chunked_head(JSON) + chunk(b"{}") + LAST_CHUNK,
    "none": b"HTTP/1.1 204 No Content\r\n\r\n",
    "no length": reply(b"", JSON),
}


@pytest.mark.parametrize("said", SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("beyond", [b"H", b"\r\n", b"HTTP/1.1 200 OK\r\nContent-Le", REPLY])
async def test_word_said_beyond_the_reply_costs_the_connection(
    said: bytes, beyond: bytes, ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    """In one read with the reply's end."""
    await read(await answered(ask, engine, said + beyond))
    assert counts(session) == (0, 0)

    task = ask()
    second = await engine.next()
    await second.answer(REPLY)
    assert await read(await task) == b"{}"


async def test_word_that_was_not_read_yet_costs_the_connection(
    ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    task = ask()
    first = await engine.next()
    await first.answer(REPLY)
    await task
    [waiting] = kept(session)
    assert waiting.transport is not None
    waiting.transport.pause_reading()  # as if the loop had not come to it
    await first.send(b"H")
    await until(lambda: not waiting.is_silent())
    assert not waiting.should_close


async def test_word_said_before_the_request_is_no_answer(session: aiohttp.ClientSession) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(REPLY)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    connector: Any = session.connector
    address = connector.address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    connection = await connector.get_connection(address, session.timeout)
    await until(lambda: connection.should_close)

    with pytest.raises(BadReply):
        await ask_engine(connection, make_request(address, "GET", "/", CIMultiDict(), None), "")
    assert counts(session) == (0, 0)
    server.close()


@pytest.mark.parametrize("keeps_on", [True, False], ids=["keep-alive", "close"])
async def test_answer_before_the_request_is_read(
    keeps_on: bool, ask: Ask, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    """What is left of the request would be in the way of the next one."""
    task = ask(LARGE)
    arrived = await engine.next()
    fields = () if keeps_on else ("Connection: close",)
    await arrived.send(reply(b"too large", *fields, status="413 Content Too Large"))
    answer = await task

    with answer:
        assert (answer.status, await read(answer)) == (413, b"too large")
    assert counts(session) == (0, 0)
    await arrived.gone()
    assert engine.count == 1


async def test_small_request_that_is_not_read_costs_its_connection(
    session: aiohttp.ClientSession,
) -> None:
    loop, headers = asyncio.get_running_loop(), CIMultiDict[str]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        task = asyncio.create_task(send(session, url, "GET", "/", headers, None))
        async with asyncio.timeout(WAIT_S):
            line, _ = await loop.sock_accept(server)
        with line:
            async with asyncio.timeout(WAIT_S):
                assert await loop.sock_recv(line, 1000)  # what comes before is no answer
            await loop.sock_sendall(line, REPLY)
            await task
            [connection] = kept(session)
            assert connection.transport is not None
            buffer = connection.transport.get_extra_info("socket")
            buffer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

            body = b"a" * PIECE_BYTES
            task = asyncio.create_task(send(session, url, "POST", "/", headers, body))
            await until(lambda: connection.writing_paused)
            await loop.sock_sendall(line, REPLY)
            assert await read(await task) == b"{}"

            assert counts(session) == (0, 0)
            assert connection.transport is None


async def nothing(arrived: Arrival) -> None:
    pass


async def interim(arrived: Arrival) -> None:
    await arrived.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")


async def half_a_head(arrived: Arrival) -> None:
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-")


@pytest.mark.parametrize("body", [None, b"{}", LARGE], ids=["none", "small", "large"])
@pytest.mark.parametrize("before", [nothing, interim, half_a_head])
async def test_who_leaves_before_the_head_leaves_nothing(
    before: Callable[[Arrival], Awaitable[None]],
    body: bytes | None,
    ask: Ask,
    engine: Upstream,
    session: aiohttp.ClientSession,
) -> None:
    tasks = asyncio.all_tasks()
    task = ask(body)
    arrived = await engine.next()
    await before(arrived)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert counts(session) == (0, 0)
    await arrived.gone()
    await until(lambda: len(asyncio.all_tasks()) <= len(tasks) + 1)  # the engine's own


async def test_who_leaves_while_it_connects_leaves_nothing(session: aiohttp.ClientSession) -> None:
    descriptors = psutil.Process().num_fds
    with full_port() as url:
        before = descriptors()
        task = asyncio.create_task(send(session, url, "GET", "/", CIMultiDict(), None))
        await until(lambda: descriptors() == before + 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert descriptors() == before

    assert counts(session) == (0, 0)


async def test_name_with_several_addresses(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    engine.reply = REPLY
    url = engine.url.replace("127.0.0.1", "localhost")  # ::1 comes first where there is IPv6
    headers = CIMultiDict({"X-Request-Id": "1"})

    assert await read(await send(session, url, "GET", "/x", headers, None)) == b"{}"
    assert (await engine.next()).head.get("host") == url.removeprefix("http://")


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[str, Path]]:
    """An engine behind TLS: its URL, and the certificate that it shows."""
    key, shown = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run(  # noqa: ASYNC221 - nothing else goes on yet
            [*command, "-keyout", key, "-out", shown], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl makes no certificate here")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown, key)
    upstream = Upstream("unknown")
    upstream.reply = REPLY
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, ssl=context)
    yield f"https://localhost:{server.sockets[0].getsockname()[1]}", shown
    server.close()
    await upstream.stop()


async def test_engine_behind_tls(
    secured: tuple[str, Path], session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, shown = secured
    headers = CIMultiDict({"X-Request-Id": "1"})
    with pytest.raises(UpstreamError) as caught:  # nobody has vouched for it
        await send(session, url, "POST", "/x", headers, b"{}")
    assert caught.value.ended == "upstream-refused"
    assert "certificate that is not trusted here (self-signed certificate)" in caught.value.failed
    assert counts(session) == (0, 0)

    monkeypatch.setenv("SSL_CERT_FILE", str(shown))
    uncached = connector._tls_context.__wrapped__
    monkeypatch.setattr(connector, "_tls_context", uncached)
    for _ in range(2):
        assert await read(await send(session, url, "POST", "/x", headers, b"{}")) == b"{}"
    assert counts(session) == (0, 1)


async def test_a_head_may_be_as_long_as_the_settings_say(engine: Upstream) -> None:
    engine.reply = reply(b"{}", JSON, f"X-Long: {'a' * 70_000}")
    asked = CIMultiDict({"X-Request-Id": "1"})
    async with make_session(5.0) as usual, make_session(5.0, 1 << 18) as patient:
        with pytest.raises(UpstreamError):
            await send(usual, engine.url, "GET", "/x", asked, None)
        found = await send(patient, engine.url, "GET", "/x", asked, None)

        assert len(found.headers["X-Long"]) == 70_000
        assert await read(found) == b"{}"
