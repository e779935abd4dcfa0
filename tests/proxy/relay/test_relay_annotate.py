"""`annotate`: the record inside its own stream, where it was asked for and nowhere else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes import recordings
from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream, listening
from fakes.wire import LAST_CHUNK, SSE, chunk, chunked_head

NDJSON = "Content-Type: application/x-ndjson"
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
LINES = b'{"message":{"content":"a"},"done":false}\n{"done":true,"eval_count":1}\n'


async def streamed(engine: Upstream, client: Client, body: bytes, *fields: str) -> bytes:
    """What the client gets of a stream that comes in one piece."""
    await client.chat(*fields)
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(body) + LAST_CHUNK)
    _, said = await client.reply()
    return said


def comment_of(body: bytes) -> dict[str, Any]:
    [line] = [line for line in body.split(b"\n\n") if line.startswith(b": slowtok ")]
    found: dict[str, Any] = json.loads(line.removeprefix(b": slowtok "))
    return found


@pytest.mark.parametrize("kind", ["unknown", "llama-server"])
async def test_comment_stands_before_the_end(
    proxy: Served, engine: Upstream, client: Client, kind: str
) -> None:
    usage = USAGE if kind == "unknown" else b""  # it is asked for there, and taken out again
    body = await streamed(engine, client, TEXT + FINISH + usage + DONE, "slowtok-annotate: comment")
    comment = comment_of(body)

    assert body == TEXT + FINISH + b": slowtok " + json_bytes(comment) + b"\n\n" + DONE
    record = await proxy.record(comment["id"])
    assert comment["verdict"] == record["verdict"]
    assert comment["ended"] == "stop"
    assert comment.get("tokens") == ({"prompt": 3, "completion": 2} if usage else None)


def json_bytes(said: Any) -> bytes:
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()


async def test_chunk_stands_in_the_last_object(engine: Upstream, client: Client) -> None:
    body = await streamed(engine, client, TEXT + FINISH + DONE, "slowtok-annotate: chunk")

    first, last, done = body.split(b"\n\n")[:3]
    said = json.loads(last.removeprefix(b"data: "))
    assert (first + b"\n\n", done + b"\n\n") == (TEXT, DONE)
    assert said["choices"][0]["finish_reason"] == "stop"
    assert said["slowtok"]["event"] == "request"


@pytest.mark.parametrize("kind", ["ollama"])
@pytest.mark.parametrize("mode", ["comment", "chunk"])
async def test_json_lines_have_no_comments(engine: Upstream, client: Client, mode: str) -> None:
    await client.chat(f"slowtok-annotate: {mode}", target="/api/chat")
    arrived = await engine.next()
    await arrived.send(chunked_head(NDJSON) + chunk(LINES) + LAST_CHUNK)
    _, body = await client.reply()

    if mode == "comment":
        assert body == LINES
    else:
        first, last = body.splitlines()
        assert first + b"\n" == LINES[: len(first) + 1]
        assert json.loads(last)["slowtok"]["tokens"] == {"completion": 1}


async def test_each_event_passes_before_the_next_exists(engine: Upstream, client: Client) -> None:
    await client.chat("slowtok-annotate: comment")
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()

    for event in (b":\n\n", TEXT, FINISH):
        await arrived.send(chunk(event))
        assert await client.chunk() == event
    await arrived.send(chunk(DONE))
    assert (await client.chunk()).startswith(b": slowtok {")


async def test_the_engine_never_sees_the_wish_and_may_not_compress(
    engine: Upstream, client: Client
) -> None:
    await client.chat("slowtok-annotate: comment", "Accept-Encoding: gzip")
    head = (await engine.next()).head

    assert head.get("slowtok-annotate") is None
    assert head.get("accept-encoding") is None


@pytest.mark.parametrize("fields", [(), ("slowtok-annotate: off",), ("slowtok-annotate: x",)])
async def test_the_setting_counts_where_the_request_says_nothing(
    fields: tuple[str, ...], tmp_path: Path
) -> None:
    async with (
        listening("llama-server") as engine,
        serving(tmp_path, engine.url, annotate="comment") as proxy,
    ):
        body = await streamed(engine, await proxy.connect(), TEXT + FINISH + DONE, *fields)

    assert (b": slowtok " in body) == (fields != ("slowtok-annotate: off",))


async def test_a_stream_that_breaks_off_keeps_what_was_held_back(
    engine: Upstream, client: Client
) -> None:
    await client.chat("slowtok-annotate: chunk")
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT + FINISH))
    await client.head()
    assert await client.chunk() == TEXT

    arrived.reset()

    assert await client.chunk() == FINISH


async def test_a_record_that_breaks_costs_only_itself(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("slowtok.proxy.observe.observer.make_record", broken)
    body = await streamed(engine, client, TEXT + FINISH + DONE, "slowtok-annotate: comment")

    assert body == TEXT + FINISH + DONE
    assert proxy.proxy.observer.failures["annotation"] == 1


@pytest.mark.parametrize("mode", ["comment", "chunk"])
@pytest.mark.parametrize(
    "name",
    [n for n in recordings.names("llama*stream*") if ".chat" not in n or n.endswith("chat-stream")],
)
async def test_recorded_streams_of_every_api(
    name: str, mode: str, engine: Upstream, client: Client
) -> None:
    recording = recordings.load(name)
    recorded = recordings.unframe(recording)
    asked = json.dumps(recording.request["body"]).encode()
    await client.ask("POST", recording.request["path"], f"slowtok-annotate: {mode}", body=asked)
    arrived = await engine.next()
    for _, piece in recording.chunks:
        await arrived.send(piece)
    _, body = await client.reply()

    assert without_record(body, mode) == recorded.body


def without_record(body: bytes, mode: str) -> bytes:
    """Take out the comment, or the members, which are there once."""
    if mode == "comment":
        assert body.count(b": slowtok {") == 1
        return re.sub(rb": slowtok .*\n\n", b"", body)
    text = body.decode()
    for member in (',"slowtok":', ',"timings":'):
        if member == ',"timings":' and "message_stop" not in text:
            break  # the engine's own
        assert text.count(member) == 1
        before, after = text.split(member)
        _, end = json.JSONDecoder().raw_decode(after)
        text = before + after[end:]
    return text.encode()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.binary(min_size=1)
        | st.sampled_from([TEXT, FINISH, DONE, b"\n", b"data: ", b": slowtok x\n\n"]),
        max_size=12,
    ),
    content_type=st.sampled_from([SSE, NDJSON]),
)
async def test_with_it_off_any_bytes_in_any_pieces_pass_unchanged(
    pieces: list[bytes], content_type: str, engine: Upstream, proxy: Served
) -> None:
    client = await proxy.connect()
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(content_type) + b"".join(map(chunk, pieces)) + LAST_CHUNK)

    head, body = await client.reply()
    client.close()
    arrived.over.set()

    assert head.status == 200
    assert body == b"".join(pieces)
