"""An engine that refuses, breaks or dies: said clearly before the head, shown broken after it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.client import CHAT, Client
from fakes.full_port import full_port
from fakes.proxy import Served, serving
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, Head, chunk, chunked_head, reply

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
CLOSE_OR_RESET = pytest.mark.parametrize("end", [Arrival.close, Arrival.reset])
REQUESTS = pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, b'{"stream":true}'), (CHAT, b'{"stream":false}'), ("/x", b"passed")],
)


def error_of(head: Head, body: bytes) -> dict[str, Any]:
    """The error in the one shape that OpenAI's clients read."""
    assert head.get("content-type") == "application/json; charset=utf-8"
    error: dict[str, Any] = json.loads(body)["error"]
    assert list(json.loads(body)) == ["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("slowtok_error", None)
    return error


@pytest.fixture
async def dead(tmp_path: Path) -> AsyncIterator[tuple[str, Served]]:
    """A proxy whose engine does not run, and where that would be."""
    with socket.socket() as reserved:  # bound and not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        async with serving(tmp_path, url) as proxy:
            yield url, proxy


@REQUESTS
async def test_engine_that_does_not_run(path: str, body: bytes, dead: tuple[str, Served]) -> None:
    url, proxy = dead
    client = await proxy.connect()

    await client.ask("POST", path, "Origin: http://localhost:5173", body=body)
    head, said = await client.reply()

    error = error_of(head, said)
    assert head.status == 502
    assert error["code"] == "upstream-refused"
    assert f"{url} refused the connection: check that the engine is running" in error["message"]
    assert head.get("access-control-allow-origin") == "http://localhost:5173"
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("upstream-refused", 502)


async def test_proxy_serves_on_after_an_error(dead: tuple[str, Served]) -> None:
    _, proxy = dead
    client = await proxy.connect()
    for _ in range(2):
        await client.chat()
        assert (await client.reply())[0].status == 502


async def test_no_engine_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slowtok.proxy.engines.registry.USUAL_PORTS", {1: "llama-server"})
    async with serving(tmp_path) as proxy:
        client = await proxy.connect()
        await client.chat()
        head, body = await client.reply()

        error = error_of(head, body)
        assert (head.status, error["code"]) == (502, "no-engine")
        assert "no inference server found (ports 1): start llama-server" in error["message"]
        assert (await proxy.record(head.get("slowtok-id")))["ended"] == "no-engine"


async def test_engine_that_does_not_accept_in_time(tmp_path: Path) -> None:
    with full_port() as url:
        async with serving(tmp_path, url, connect_timeout_s=0.2) as proxy:
            client = await proxy.connect()
            await client.chat()
            head, body = await client.reply()
            record = await proxy.record(head.get("slowtok-id"))

    error = error_of(head, body)
    assert (head.status, error["code"]) == (504, "timeout")
    assert f"{url} did not accept the connection in time" in error["message"]
    assert (record["ended"], record["status"]) == ("timeout", 504)


@CLOSE_OR_RESET
@REQUESTS
async def test_engine_dies_before_its_head(
    path: str, body: bytes, end: Any, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", path, body=body)
    arrived = await engine.next()
    await arrived.body()
    end(arrived)
    head, said = await client.reply()

    error = error_of(head, said)
    assert (head.status, error["code"]) == (502, "upstream-error")
    assert f"{engine.url} closed the connection before it answered" in error["message"]
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("upstream-error", 502)
    assert engine.count == 1  # a crash is not provoked twice


@CLOSE_OR_RESET
@REQUESTS
async def test_engine_dies_in_its_head(
    path: str, body: bytes, end: Any, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", path, body=body)
    arrived = await engine.next()
    await arrived.body()
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    end(arrived)
    head, said = await client.reply()

    assert (head.status, error_of(head, said)["code"]) == (502, "upstream-error")
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"


@REQUESTS
async def test_garbage_instead_of_http(
    path: str, body: bytes, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", path, body=body)
    arrived = await engine.next()
    await arrived.send(b"\x15\x03\x01\x00\x02\x02\x16 SSH-2.0-secret\r\n\r\n")
    head, said = await client.reply()

    error = error_of(head, said)
    assert (head.status, error["code"]) == (502, "upstream-error")
    assert "sent no valid HTTP reply" in error["message"]
    assert "check that this is the address of an inference server" in error["message"]
    assert "SSH" not in error["message"]  # not a byte of what it sent
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"
    assert engine.count == 1


BREAKS = pytest.mark.parametrize(
    "last",
    [b"", b"20\r\nhalf a chu", b"zz\r\nno size\r\n", b"5\r\nhelloXX"],
    ids=["between chunks", "mid-chunk", "garbage for a size", "garbage after a chunk"],
)


@BREAKS
@CLOSE_OR_RESET
@pytest.mark.parametrize("path", [CHAT, "/x"])
async def test_stream_that_breaks_off_ends_broken(
    path: str, end: Any, last: bytes, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", path, body=b'{"stream":true}')
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    head = await client.head()
    assert await client.chunk() == TEXT

    if last:
        await arrived.send(last)
    end(arrived)

    rest = await client.rest()
    assert b"0\r\n\r\n" not in rest  # never a clean end
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("upstream-error", 200)


@CLOSE_OR_RESET
async def test_stream_with_a_length_ends_short(
    end: Any, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("GET", "/file")
    arrived = await engine.next()
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
    head = await client.head()
    assert await client.reader.readexactly(9) == b"only this"
    end(arrived)

    assert await client.rest() == b""
    assert head.get("content-length") == "100"
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"


async def test_stream_to_an_http_1_0_client_ends_with_a_reset(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", CHAT, body=b'{"stream":true}', version="HTTP/1.0")
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    head = await client.head()
    assert await client.reader.readexactly(len(TEXT)) == TEXT
    arrived.close()

    with pytest.raises(ConnectionResetError):  # a plain end would look complete
        await client.rest()
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"


@pytest.mark.parametrize("kind", ["vllm"])
async def test_bytes_held_back_come_out_when_the_stream_breaks(
    engine: Upstream, client: Client
) -> None:
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE) + chunk(TEXT))
    await client.head()
    assert await client.chunk() == TEXT
    await arrived.send(chunk(b'data: {"choices":'))  # it could have become the usage chunk
    await asyncio.sleep(0)
    arrived.close()

    assert await client.chunk() == b'data: {"choices":'
    assert await client.rest() == b""


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
async def test_stream_without_a_finish_is_recorded_as_broken(
    path: str, proxy: Served, engine: Upstream, client: Client
) -> None:
    whole = {CHAT: TEXT, "/api/chat": b'{"message":{"content":"a"},"done":false}\n'}[path]
    kind = {CHAT: SSE, "/api/chat": "Content-Type: application/x-ndjson"}[path]
    engine.reply = chunked_head(kind) + chunk(whole) + b"0\r\n\r\n"  # Ollama swallows errors so

    await client.chat(target=path)
    head, body = await client.reply()

    assert body == whole
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"


@CLOSE_OR_RESET
@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Type: application/json\r\n\r\n{",
        chunked_head(JSON) + chunk(b"{"),
        chunked_head(JSON) + b"zz\r\n",
    ],
    ids=["length", "chunked", "garbage for a size"],
)
async def test_whole_reply_that_breaks_off_is_an_error(
    begun: bytes, end: Any, proxy: Served, engine: Upstream, client: Client
) -> None:
    await client.chat(stream=False)
    arrived = await engine.next()
    await arrived.body()
    await arrived.send(begun)
    end(arrived)
    head, body = await client.reply()

    error = error_of(head, body)
    assert (head.status, error["code"]) == (502, "upstream-error")
    assert engine.url in error["message"]
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("upstream-error", 502)


async def test_error_of_the_engine_passes_as_it_is(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    said = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
    engine.reply = reply(said, JSON, "Retry-After: 5", status="503 Service Unavailable")

    await client.chat()
    head, body = await client.reply()

    assert (head.status, head.get("retry-after"), body) == (503, "5", said)
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("http-error", 503)


async def test_engine_that_answers_before_the_upload_is_done(
    engine: Upstream, client: Client
) -> None:
    await client.send(b"PUT /blob HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n01234")
    arrived = await engine.next()
    await arrived.send(reply(b"too large", status="413 Content Too Large"))
    head, body = await client.reply()

    assert (head.status, body) == (413, b"too large")


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("path", ["/x", CHAT])
async def test_reply_that_is_reset_never_looks_whole(
    path: str, version: str, proxy: Served, engine: Upstream
) -> None:
    """Its end would have been that of its connection."""
    client = await proxy.connect()
    body = b'{"model":"m","stream":true,"messages":[]}'
    await client.ask("POST", path, JSON, body=body, version=version)
    arrived = await engine.next()
    await arrived.send(b"HTTP/1.1 200 OK\r\n" + SSE.encode() + b"\r\n\r\n" + TEXT)
    head = await client.head()
    arrived.reset()

    if version == "HTTP/1.0":
        with pytest.raises(ConnectionResetError):
            await client.rest()
    else:
        assert not (await client.rest()).endswith(LAST_CHUNK)
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"
