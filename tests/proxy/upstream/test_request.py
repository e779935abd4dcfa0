"""What goes over the wire to an engine, byte by byte, and how a large body is sent."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from fakes.engine_pool import in_use
from fakes.upstream import Upstream
from fakes.wire import until
from slowtok.proxy.upstream.client import UpstreamError, make_session, send
from slowtok.proxy.upstream.request import PIECE_BYTES, Body

FIELDS = (("X-Request-Id", "1"), ("x-lower", "a"), ("X-Two", "a"), ("X-Two", "b"))
LARGE = b"0123456789" * (PIECE_BYTES // 4)
LARGE_BYTES = 64 << 20


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session(5.0) as session:
        yield session


def asking(
    session: aiohttp.ClientSession,
    engine: Upstream,
    body: Body,
    *fields: tuple[str, str],
    method: str = "POST",
    target: str = "/x",
) -> asyncio.Task[Any]:
    headers = CIMultiDict([*FIELDS, *fields])
    return asyncio.create_task(send(session, engine.url, method, target, headers, body))


async def stop(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def pieces(*values: bytes) -> AsyncIterator[bytes]:
    for value in values:
        yield value


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"a" * 1000


FRAMED = {
    "none": ("GET", None, (), [], b""),
    "none where one is usual": ("POST", None, (), ["Content-Length: 0"], b""),
    "none with a length": ("GET", None, (("content-length", "0"),), ["content-length: 0"], b""),
    "empty": ("POST", b"", (), ["Content-Length: 0"], b""),
    "small": ("POST", b"{}", (), ["Content-Length: 2"], b"{}"),
    "changed": ("POST", b"{}", (("Content-Length", "9"),), ["Content-Length: 2"], b"{}"),
    "large": ("POST", LARGE, (), [f"Content-Length: {len(LARGE)}"], LARGE),
    "in pieces": ("POST", (b"ab", b"c"), (), ["Transfer-Encoding: chunked"], b"abc"),
    "in pieces with a length": (
        *("PUT", (b"ab", b"c"), (("Content-Length", "3"),)),
        *(["Content-Length: 3"], b"abc"),
    ),
    "in no piece": ("POST", (), (), ["Transfer-Encoding: chunked"], b""),
}


@pytest.mark.parametrize(
    ("method", "body", "given", "framing", "arrives"), FRAMED.values(), ids=FRAMED
)
async def test_head_and_body(
    method: str,
    body: bytes | tuple[bytes, ...] | None,
    given: tuple[tuple[str, str], ...],
    framing: list[str],
    arrives: bytes,
    engine: Upstream,
    session: aiohttp.ClientSession,
) -> None:
    sent = pieces(*body) if isinstance(body, tuple) else body
    task = asking(session, engine, sent, *given, method=method)
    arrived = await engine.next()

    assert await arrived.body() == arrives
    assert arrived.head.raw.decode().split("\r\n") == [
        f"{method} /x HTTP/1.1",
        f"Host: {engine.url.removeprefix('http://')}",
        *(f"{name}: {value}" for name, value in FIELDS),
        *framing,
        "",
        "",
    ]
    await stop(task)


@pytest.mark.parametrize(
    ("target", "arrives"),
    [
        ("/", "/"),
        ("/a%20b?c=%2f&d", "/a%20b?c=%2f&d"),
        ("/a?", "/a?"),
        ("/a#b", "/a"),
        ("//a", "//a"),
    ],
)
async def test_target_is_not_changed(
    target: str, arrives: str, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    task = asking(session, engine, None, target=target)

    assert (await engine.next()).head.target == arrives
    await stop(task)


@pytest.mark.parametrize("bad", ["a\r\nX-Evil: b", "a\nb", "a\0b"])
async def test_control_characters_are_not_sent(
    bad: str, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    for asked in (
        asking(session, engine, b"{}", ("X-A", bad)),
        asking(session, engine, b"{}", target=f"/{bad}"),
    ):
        with pytest.raises(UpstreamError) as caught:
            await asked
        assert caught.value.status == 502
    assert engine.count == 0
    assert in_use(session) == []


@pytest.mark.parametrize("kind_of_body", ["whole", "in pieces"])
async def test_large_body_waits_until_it_is_taken(
    kind_of_body: str, engine: Upstream, session: aiohttp.ClientSession
) -> None:
    task = asking(session, engine, b"a" * LARGE_BYTES if kind_of_body == "whole" else endless())
    arrived = await engine.next()
    arrived._reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until(lambda: any(protocol.writing_paused for protocol in in_use(session)))

    [protocol] = in_use(session)
    transport = protocol.transport
    assert transport.get_write_buffer_size() <= 2 * PIECE_BYTES
    await stop(task)
    assert in_use(session) == []
    await until(lambda: transport.get_write_buffer_size() == 0)  # nothing waits for the engine


async def test_body_that_breaks_is_no_request(
    engine: Upstream, session: aiohttp.ClientSession
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"a"
        raise ValueError

    with pytest.raises(UpstreamError) as caught:
        await asking(session, engine, breaks())

    assert (caught.value.status, caught.value.ended) == (502, "upstream-error")
    assert in_use(session) == []
