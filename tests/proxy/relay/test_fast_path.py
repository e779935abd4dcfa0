"""Between two tokens no task is woken, and what a tap borrows it gives back."""

import aiohttp
import pytest

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head

TOKENS = 20


def text(said: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % said.encode()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what tasks read from engines."""
    sizes: list[int] = []
    readany = aiohttp.StreamReader.readany

    async def noted(self: aiohttp.StreamReader) -> bytes:
        data = await readany(self)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(aiohttp.StreamReader, "readany", noted)
    return sizes


@pytest.mark.parametrize("kind", ["llama-server", "vllm"])
async def test_tokens_pass_without_a_task(
    engine: Upstream, client: Client, reads: list[int]
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

    assert reads == [0]  # the end


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
