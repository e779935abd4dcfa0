"""`split_nonstreamed`: a stream is asked for, and the client gets one whole reply all the same."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes import recordings
from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply

TEXT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
def kind() -> str:
    return "vllm"


@pytest.fixture
async def proxy(engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, engine.url, split_nonstreamed="stream") as served:
        yield served


async def answered(engine: Upstream, client: Client, *pieces: bytes) -> tuple[Any, Any]:
    await client.chat(stream=False)
    arrived = await engine.next()
    asked = json.loads(await arrived.body())
    assert (asked["stream"], asked["stream_options"]) == (True, {"include_usage": True})
    await arrived.send(chunked_head(SSE, "Cache-Control: no-cache"))
    for piece in pieces:
        await arrived.send(chunk(piece))
    await arrived.send(LAST_CHUNK)
    head, body = await client.reply()
    return head, json.loads(body)


async def test_one_document_with_its_own_diagnosis(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    head, said = await answered(engine, client, TEXT, TEXT, FINISH, USAGE + DONE)

    assert said["choices"][0]["message"] == {"role": "assistant", "content": "aa"}
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 2}
    assert head.get("content-type") == "application/json"
    assert head.get("cache-control") is None
    assert head.get("slowtok-verdict") == "unknown"
    record = await proxy.record(head.get("slowtok-id"))
    assert record["stream"] is True
    assert record["timing"]["source"] == "stream"
    assert {"prefill_ms", "decode_ms", "ttft_ms"} <= set(record["timing"])
    assert record["ended"] == "stop"


async def test_a_recorded_stream(engine: Upstream, client: Client) -> None:
    body = recordings.unframe(recordings.load("vllm-0.32.chat-stream-usage")).body

    head, said = await answered(engine, client, body)

    assert said["object"] == "chat.completion"
    assert said["usage"]["completion_tokens"] == 16
    assert (head.get("slowtok-decode") or "").startswith("16;ms=244.6")


@pytest.mark.parametrize(
    ("name", "path", "ended"),
    [
        ("vllm-0.32.messages-stream", "/v1/messages", "length"),
        ("llama-server-2026.10.messages-stream", "/v1/messages", "length"),
        ("vllm-0.32.responses-stream", "/v1/responses", "stop"),
        ("llama-server-2026.10.responses-stream", "/v1/responses", "stop"),
    ],
)
async def test_a_recorded_stream_of_another_api(
    proxy: Served, engine: Upstream, client: Client, name: str, path: str, ended: str
) -> None:
    recorded = recordings.unframe(recordings.load(name))
    await client.chat(stream=False, target=path)
    arrived = await engine.next()
    asked = json.loads(await arrived.body())
    await arrived.send(chunked_head(SSE))
    for _, piece in recorded.pieces:
        await arrived.send(chunk(piece))
    await arrived.send(LAST_CHUNK)
    head, body = await client.reply()
    record = await proxy.record(head.get("slowtok-id"))

    assert asked == {"model": "small", "stream": True, "messages": []}, "it has no stream_options"
    assert json.loads(body)["usage"]["output_tokens"] in (10, 16)
    assert (head.get("content-type"), record["ended"]) == ("application/json", ended)
    assert {"prefill_ms", "decode_ms", "ttft_ms"} <= set(record["timing"])


async def test_an_error_of_anthropics_keeps_its_form(engine: Upstream, client: Client) -> None:
    said = {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}
    event = b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"
    await client.chat(stream=False, target="/v1/messages")
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(event) + LAST_CHUNK)
    head, body = await client.reply()

    assert (head.status, json.loads(body)) == (500, said)


@pytest.mark.parametrize(
    ("error", "status"),
    [({"message": "x", "code": 503}, 503), ({"message": "x"}, 500), ({"code": 1}, 500), ("x", 500)],
)
async def test_an_error_in_the_stream_is_an_error_reply(
    proxy: Served, engine: Upstream, client: Client, error: Any, status: int
) -> None:
    event = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    head, said = await answered(engine, client, TEXT, event, DONE)

    assert (head.status, said) == (status, {"error": error})
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "http-error"


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([TEXT], id="no end of the answer"),
        pytest.param([b"data: {\n\n"], id="no JSON"),
        pytest.param([b'data: {"choices":[1]}\n\n'], id="no choice"),
        pytest.param([b'data: {"choices":3}\n\n'], id="no list"),
        pytest.param([], id="nothing"),
    ],
)
async def test_half_an_answer_is_an_error(
    engine: Upstream, client: Client, pieces: list[bytes]
) -> None:
    head, said = await answered(engine, client, *pieces)

    assert head.status == 502
    assert "stream" in said["error"]["message"]


async def test_a_stream_that_is_too_long_to_be_put_together_is_an_error(
    engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.relay.assembled.MAX_STREAM_BYTES", 1000)
    head, said = await answered(engine, client, TEXT * 20, FINISH, DONE)

    assert head.status == 502
    assert "too long" in said["error"]["message"]


async def test_a_stream_that_there_is_no_room_for_is_refused_with_the_setting(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    proxy.proxy.relay.memory_budget.limit_bytes = 1000
    head, said = await answered(engine, client, TEXT * 20, FINISH, DONE)

    assert (head.status, said["error"]["code"]) == (503, "overloaded")
    assert "max_held_bytes" in json.dumps(said)
    assert proxy.proxy.relay.memory_budget.now_bytes == 0


async def test_a_connection_that_breaks_is_an_error(engine: Upstream, client: Client) -> None:
    await client.chat(stream=False)
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    arrived.reset()
    head, _ = await client.reply()

    assert head.status == 502


async def test_an_engine_that_refuses_the_stream_is_asked_as_the_client_asked(
    engine: Upstream, client: Client
) -> None:
    await client.chat(stream=False, max_tokens=3)
    first = await engine.next()
    await first.body()
    await first.send(reply(b'{"error":{"message":"no streams"}}', JSON, status="400 Bad Request"))
    first.close()
    second = await engine.next()
    asked = json.loads(await second.body())
    await second.send(reply(b'{"choices":[{"message":{"content":"a"}}]}', JSON))
    head, body = await client.reply()

    assert asked == {"model": "small", "stream": False, "messages": [], "max_tokens": 3}
    assert (head.status, body) == (200, b'{"choices":[{"message":{"content":"a"}}]}')


async def test_an_engine_that_ignores_the_wish_answers_as_it_likes(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b'{"choices":[]}', JSON)

    await client.chat(stream=False)
    _, body = await client.reply()

    assert body == b'{"choices":[]}'


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/v1/chat/completions", {"stream": False, "best_of": 2}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/responses", {"input": "a", "background": True}),
        ("/v1/messages", {"messages": [], "stream": True}),
        ("/completion", {"prompt": "a"}),
        ("/v1/nope", {"stream": False}),
    ],
)
async def test_other_requests_pass_as_they_are(
    engine: Upstream, client: Client, target: str, said: dict[str, Any]
) -> None:
    body = json.dumps(said).encode()
    await client.ask("POST", target, body=body)

    assert await (await engine.next()).body() == body
