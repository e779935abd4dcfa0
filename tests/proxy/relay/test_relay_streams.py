"""Streams: the same bytes, each piece at once, usage asked for and taken out again."""

import asyncio
import json
from pathlib import Path

import pytest

from fakes import recordings
from fakes.client import CHAT, Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream, listening
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head, read_chunk, reply

NDJSON = "Content-Type: application/x-ndjson"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAMED = recordings.names("*stream*")


def text(said: str, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"delta":{{"content":"{said}"}},"finish_reason":{finish}}}'
    return f'data: {{"choices":[{choice}]}}\n\n'.encode()


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("split", ["as recorded", "in bytes"])
async def test_recorded_stream_passes_byte_for_byte(name: str, split: str, tmp_path: Path) -> None:
    recording = recordings.load(name)
    recorded = recordings.unframe(recording)
    asked = json.dumps(recording.request["body"]).encode()
    raw = [piece for _, piece in recording.chunks]
    if split == "in bytes":
        raw = [_bytewise(recorded)]
    kind = "llama-server" if name.startswith("llama") else "vllm"
    async with listening(kind) as engine, serving(tmp_path, engine.url) as proxy:
        client = await proxy.connect()
        await client.ask("POST", recording.request["path"], body=asked)
        arrived = await engine.next()
        for piece in raw:
            await arrived.send(piece)
        head, body = await client.reply()
        record = await proxy.record(head.get("slowtok-id"))

    assert head.status == recorded.status
    assert body == recorded.body  # the recorded engine was not asked for more usage than it gave
    assert record["status"] == recorded.status


@pytest.mark.parametrize("kind", ["vllm"])
async def test_usage_of_a_recorded_stream_is_taken_out_where_nobody_asked(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    recorded = recordings.load("vllm-0.32.chat-stream-usage")
    events = recordings.unframe(recorded).body.split(b"\n\n")
    without = b"\n\n".join(event for event in events if b'"choices":[]' not in event)

    await client.chat()
    arrived = await engine.next()
    for _, piece in recorded.chunks:
        await arrived.send(piece)
    head, body = await client.reply()

    assert len(events) == without.count(b"\n\n") + 2  # one of them was the usage
    assert body == without
    assert (await proxy.record(head.get("slowtok-id")))["tokens"]["completion"] > 0


def _bytewise(recorded: recordings.Response) -> bytes:
    head = chunked_head(f"Content-Type: {recorded.content_type}")
    head = head.replace(b"200 OK", b"%d OK" % recorded.status)
    body = recorded.body
    return head + b"".join(chunk(body[i : i + 1]) for i in range(len(body))) + LAST_CHUNK


@pytest.mark.parametrize("kind", ["llama-server", "vllm", "ollama", "unknown"])
async def test_each_piece_passes_before_the_next_exists(engine: Upstream, client: Client) -> None:
    await client.chat()
    arrived = await engine.next()

    await arrived.send(chunked_head(SSE))
    assert (await client.head()).status == 200  # before any byte of the body
    for piece in (b": ping\n\n", ROLE, text("a"), text("b") + text("c"), text("", '"stop"'), DONE):
        await arrived.send(chunk(piece))
        assert await client.chunk() == piece
    await arrived.send(LAST_CHUNK)
    assert await client.chunk() == b""


async def test_half_an_event_passes_at_once(engine: Upstream, client: Client) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()

    for piece in (
        b"da",
        b'ta: {"choices":',
        b'[{"index":0,"delta":{"content":"x"}}]}',
        b"\n",
        b"\n",
    ):
        await arrived.send(chunk(piece))
        assert await client.chunk() == piece


async def test_ollamas_lines_pass_one_by_one(engine: Upstream, client: Client) -> None:
    await client.ask("POST", "/api/generate", body=b'{"model":"small","prompt":"a"}')
    arrived = await engine.next()
    await arrived.send(chunked_head(NDJSON))
    await client.head()

    for line in (b'{"response":"a","done":false}\n', b'{"response":"","done":true}\n'):
        await arrived.send(chunk(line))
        assert await client.chunk() == line


async def test_stream_to_an_http_1_0_client_ends_with_the_connection(
    engine: Upstream, client: Client
) -> None:
    engine.reply = chunked_head(SSE) + chunk(text("a")) + chunk(DONE) + LAST_CHUNK

    await client.ask("POST", CHAT, body=b'{"stream":true}', version="HTTP/1.0")
    head = await client.head()

    assert head.get("transfer-encoding") is None
    assert await client.rest() == text("a") + DONE


@pytest.mark.parametrize("kind", ["vllm", "ollama", "unknown"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_usage_is_asked_for_and_taken_out_again(
    path: str, proxy: Served, engine: Upstream, client: Client
) -> None:
    body = b'{ "stream": true, "model":"small","odd": 1.50, "messages":[]}'
    await client.ask("POST", path, "Accept-Encoding: gzip", body=body)
    arrived = await engine.next()

    assert await arrived.body() == b'{"stream_options":{"include_usage":true},' + body[1:]
    assert arrived.head.get("accept-encoding") is None  # the chunk has to be found again
    whole = ROLE + text("a") + text("b", '"stop"')
    await arrived.send(chunked_head(SSE) + chunk(whole) + chunk(USAGE) + chunk(DONE) + LAST_CHUNK)
    head, received = await client.reply()
    assert received == whole + DONE
    record = await proxy.record(head.get("slowtok-id"))
    assert record["tokens"] == {"prompt": 3, "completion": 2}
    assert record["ended"] == "stop"


@pytest.mark.parametrize("kind", ["vllm", "unknown"])
async def test_client_that_asks_for_usage_gets_it(engine: Upstream, client: Client) -> None:
    await client.chat(stream_options={"include_usage": True})
    arrived = await engine.next()

    assert json.loads(await arrived.body())["stream_options"] == {"include_usage": True}
    await arrived.send(chunked_head(SSE) + chunk(text("a") + USAGE + DONE) + LAST_CHUNK)
    assert (await client.reply())[1] == text("a") + USAGE + DONE


async def test_llama_server_is_not_asked_for_usage(engine: Upstream, client: Client) -> None:
    body = b'{"stream":true,"model":"small"}'

    await client.ask("POST", CHAT, "Accept-Encoding: gzip", body=body)
    arrived = await engine.next()

    assert await arrived.body() == body
    assert arrived.head.get("accept-encoding") == "gzip"


@pytest.mark.parametrize("kind", ["vllm"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"model":"small"}'),
        (CHAT, b'{"stream":false}'),
        ("/v1/embeddings", b'{"stream":true}'),
        ("/api/chat", b'{"stream":true}'),
        (CHAT, b'["stream"]'),
        (CHAT, b"not json"),
    ],
)
async def test_other_requests_pass_as_they_are(
    path: str, body: bytes, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", path, body=body)

    assert await (await engine.next()).body() == body


@pytest.mark.parametrize("kind", ["vllm"])
@pytest.mark.parametrize("cut", [1, 20, len(USAGE) - 1])
async def test_usage_chunk_in_two_pieces_is_taken_out(
    cut: int, engine: Upstream, client: Client
) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(text("a")))
    await client.head()
    assert await client.chunk() == text("a")

    await arrived.send(chunk(USAGE[:cut]))
    await arrived.send(chunk(USAGE[cut:]) + chunk(DONE) + LAST_CHUNK)

    assert await client.chunk() == DONE
    assert await client.chunk() == b""


@pytest.mark.parametrize("kind", ["unknown"])
async def test_stream_with_a_length_stays_whole_without_its_usage_chunk(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(text("a") + USAGE + DONE, SSE)

    await client.chat()
    head, body = await client.reply()

    assert body == text("a") + DONE
    assert head.get("content-length") is None


@pytest.mark.parametrize("kind", ["unknown"])
async def test_encoded_stream_is_not_searched(engine: Upstream, client: Client) -> None:
    packed = b"\x1f\x8bnot really gzip, and no event ends in it"
    await client.chat()
    arrived = await engine.next()

    await arrived.send(chunked_head(SSE, "Content-Encoding: gzip") + chunk(packed))

    await client.head()
    assert await client.chunk() == packed  # at once: nothing of it can be the usage chunk


@pytest.mark.parametrize("kind", ["vllm"])
async def test_error_instead_of_a_stream_passes(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    error = b'{"error":{"message":"too long","code":400}}'
    engine.reply = reply(error, "Content-Type: application/json", status="400 Bad Request")

    await client.chat()
    head, body = await client.reply()

    assert (head.status, body) == (400, error)
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "http-error"


async def test_two_streams_interleave_and_are_recorded_apart(
    proxy: Served, engine: Upstream
) -> None:
    one, two = await proxy.connect(), await proxy.connect()
    await one.chat(model="one")
    first = await engine.next()
    await two.chat(model="two")
    second = await engine.next()
    ids = []
    for arrived, client in ((first, one), (second, two)):
        await arrived.send(chunked_head(SSE))
        ids.append((await client.head()).get("slowtok-id"))
    for word in ("a", "b", "c"):
        await first.send(chunk(text(f"one {word}")))
        await second.send(chunk(text(f"two {word}")))
        assert await two.chunk() == text(f"two {word}")
        assert await one.chunk() == text(f"one {word}")
    for arrived, client, finish in ((first, one, '"stop"'), (second, two, '"length"')):
        await arrived.send(chunk(text("", finish) + DONE) + LAST_CHUNK)
        assert await read_chunk(client.reader) == text("", finish) + DONE

    records = await asyncio.gather(*(proxy.record(request_id) for request_id in ids))
    assert [(r["model"], r["ended"]) for r in records] == [("one", "stop"), ("two", "length")]


async def test_what_is_neither_a_stream_nor_a_document_passes_as_it_comes(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    """A gateway that answers with text: no piece is held back for the next."""
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head("Content-Type: text/plain"))
    head = await client.head()
    for piece in (b"first, ", b"second"):
        await arrived.send(chunk(piece))
        assert await client.chunk() == piece
    await arrived.send(LAST_CHUNK)
    assert await client.chunk() == b""

    record = await proxy.record(head.get("slowtok-id"))
    assert record["status"] == 200
    assert "completion" not in record.get("tokens", {})
