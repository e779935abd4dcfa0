"""Between two tokens no task is woken, and what the fast path borrows it gives back."""

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head
from slowtok.proxy.relay.fast_path import strip_chunk_framing

TOKENS = 20

LARGE = b"a" * 70_000


def text(said: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % said.encode()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What tasks read from engines, their pages of facts among it."""
    pieces: list[bytes] = []
    readany = aiohttp.StreamReader.readany

    async def noted(self: aiohttp.StreamReader) -> bytes:
        data = await readany(self)
        pieces.append(data)
        return data

    monkeypatch.setattr(aiohttp.StreamReader, "readany", noted)
    return pieces


@pytest.mark.parametrize("kind", ["llama-server", "vllm"])
async def test_tokens_pass_without_a_task(
    engine: Upstream, client: Client, reads: list[bytes]
) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()
    reads.clear()

    for i in range(TOKENS):
        await arrived.send(chunk(text(str(i))))
        assert await client.chunk() == text(str(i))
    await arrived.send(LAST_CHUNK)
    assert await client.chunk() == b""

    assert [data for data in reads if b"data:" in data] == []
    assert b"" in reads, "the end"


async def test_chunks_of_one_read_stay_chunks(engine: Upstream, client: Client) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()
    for said in ("a", "b"):
        await arrived.send(chunk(text(said)))
        assert await client.chunk() == text(said)

    await arrived.send(chunk(text("c")) + chunk(text("d")))

    assert [await client.chunk(), await client.chunk()] == [text("c"), text("d")]


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_pieces_of_chunks_make_the_same_body(
    engine: Upstream, client: Client, version: str
) -> None:
    said = [text(str(i)) for i in range(3)]
    wire = b"".join(map(chunk, said))
    asked = b'{"model":"small","stream":true,"messages":[]}'
    await client.ask("POST", CHAT, JSON, body=asked, version=version)
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    for piece in (wire, wire, wire[:100], wire[100:], wire[:-1], wire[-1:], wire, LAST_CHUNK):
        await arrived.send(piece)
    arrived.close()
    _, body = await client.reply()

    assert body == b"".join(said) * 5


async def test_connection_serves_the_next_stream(proxy: Served, engine: Upstream) -> None:
    clients = [await proxy.connect() for _ in range(3)]
    numbers = set()
    for client in clients:
        await client.chat()
        arrived = await engine.next()
        await arrived.body()
        numbers.add(arrived.connection)
        await arrived.send(chunked_head(SSE) + chunk(text("a")))
        await client.head()
        assert await client.chunk() == text("a")
        await arrived.send(chunk(text("b")) + LAST_CHUNK)
        assert await client.chunk() == text("b")
        assert await client.chunk() == b""
        arrived.over.set()

    assert len(numbers) == 1


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"\n",
        b"\r\n",
        LAST_CHUNK,
        b"0\r\n",
        chunk(b"a") + LAST_CHUNK,
        b"0\r\n\r\n" + chunk(b"a"),
        b"00\r\n\r\n",
        b"5\r\nhello",
        b"5\r\nhello\r",
        b"5\r\nhello\n",
        b"5\nhello\r\n",
        b"5\r\nhell\r\n",
        b"5\r\nhelloo\r\n",
        b"5\r\nhello\r\n5",
        b"5\r\nhello\r\n5\r\n",
        b"5\r\nhello\r\n\r\n",
        b"\r\n5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"05\r\nhello\r\n",
        b"0_5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\t\r\nhello\r\n",
        b"5;name=value\r\nhello\r\n",
        b"5\r\r\nhello\r\n",
        b"g\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        "\N{FULLWIDTH DIGIT FIVE}\r\nhello\r\n".encode(),
        b"100000005\r\nhello\r\n",
        b"ffffffff\r\nhello\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(read: bytes) -> None:
    assert strip_chunk_framing(read) == b""
    assert strip_chunk_framing(chunk(b"before") + read) == (b"" if read else b"before")


@pytest.mark.parametrize(
    ("read", "payload"),
    [
        (b"5\r\nhello\r\n", b"hello"),
        (b"a\r\n0123456789\r\n", b"0123456789"),
        (b"A\r\n0123456789\r\n", b"0123456789"),
        (b"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n", b"hello world"),
        (b"2\r\n\r\n\r\n", b"\r\n"),
        (b"5\r\n0\r\n\r\n\r\n", b"0\r\n\r\n"),
        (chunk(LARGE) * 3, LARGE * 3),
    ],
    ids=repr,
)
def test_whole_chunks(read: bytes, payload: bytes) -> None:
    assert strip_chunk_framing(read) == payload


@given(st.lists(st.binary(min_size=1), min_size=1))
def test_any_payload(pieces: list[bytes]) -> None:
    read = b"".join(map(chunk, pieces))

    assert strip_chunk_framing(read) == b"".join(pieces)
    assert strip_chunk_framing(read[:-1]) == b""
    assert strip_chunk_framing(read + b"0") == b""
