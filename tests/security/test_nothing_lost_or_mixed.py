"""What was sent arrives as it was, is nobody else's, and looks whole only where it is."""

import asyncio
import re
from pathlib import Path

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import Served, serving
from fakes.recorder import HEALTHY, Recorder
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, read_trailer, reply, until
from security.healthy import works_on
from slowtok.proxy.upstream.reply_head import MAX_INTERIM

OK = b"HTTP/1.1 200 OK\r\n"
SAID = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
VALUES = (b"caf\xe9", "café".encode(), b"\xff\xfeabc", b"a\tb", b'"quoted, \\" list"')


def values_of(head: bytes, name: bytes) -> list[bytes]:
    return re.findall(rb"(?im)^%b: ([^\r\n]*)\r$" % name, head)


@pytest.mark.parametrize("path", [b"/x", CHAT.encode()])
@pytest.mark.parametrize("value", VALUES)
async def test_octets_of_a_field_pass_both_ways(
    value: bytes, path: bytes, proxy: Served, recorder: Recorder
) -> None:
    recorder.engine.reply = OK + b"X-V: " + value + b"\r\nContent-Length: 2\r\n\r\n{}"
    client = await proxy.connect()
    body = b'{"model":"m","messages":[]}'
    await client.send(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nX-V: %b\r\nX-Request-Id: %b\r\n"
        % (path, value, value)
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )
    head, _ = await client.reply()

    arrived = await recorder.engine.next()
    assert values_of(arrived.head.raw, b"x-v") == [value]
    assert values_of(head.raw, b"x-v") == [value]
    await proxy.record(head.get("slowtok-id"))
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


async def test_fields_keep_their_order_and_spelling(proxy: Served, recorder: Recorder) -> None:
    names = [b"x-B", b"CONTENT-type", b"X-a", b"X-b", b"uSER-aGENT", b"x-A"]
    fields = b"".join(b"%b: %d\r\n" % (name, number) for number, name in enumerate(names))
    recorder.engine.reply = OK + b"Content-Length: 2\r\n" + fields + b"\r\n{}"
    client = await proxy.connect()
    await client.send(b"GET /x HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n")
    head, _ = await client.reply()

    arrived = await recorder.engine.next()
    assert fields in arrived.head.raw
    assert fields in head.raw


async def test_trailer_passes(proxy: Served, recorder: Recorder) -> None:
    recorder.engine.reply = (
        chunked_head(SSE)
        + chunk(SAID)
        + b"0\r\nX-Sum: caf\xe9\r\nContent-Length: 3\r\nslowtok-id: evil\r\nx-b: 1\r\n\r\n"
    )
    client = await proxy.connect()
    await client.chat()
    await client.head()

    assert await client.chunk() == SAID
    assert await client.reader.readexactly(3) == b"0\r\n"
    assert await read_trailer(client.reader) == b"X-Sum: caf\xe9\r\nx-b: 1\r\n"
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


async def test_trailer_of_a_whole_reply_passes(proxy: Served, recorder: Recorder) -> None:
    recorder.engine.reply = chunked_head(JSON) + chunk(HEALTHY) + b"0\r\nX-Sum: 1\r\n\r\n"
    client = await proxy.connect()
    await client.chat(stream=False)
    await client.head()

    assert await client.chunk() == HEALTHY
    assert await client.reader.readexactly(3) == b"0\r\n"
    assert await read_trailer(client.reader) == b"X-Sum: 1\r\n"
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


@pytest.mark.parametrize("tail", [b"H", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Le", b"\r\n"])
async def test_stream_with_more_after_its_end_is_nobodys_next_answer(
    tail: bytes, proxy: Served, recorder: Recorder
) -> None:
    """Its end comes in a read of its own, past the parser's first one."""
    recorder.engine.reply = None
    client = await proxy.connect()
    await client.chat()
    first = await recorder.engine.next()
    await first.send(chunked_head(SSE) + chunk(SAID))
    await client.head()
    assert await client.chunk() == SAID
    await first.send(chunk(DONE) + LAST_CHUNK + tail)
    assert await client.chunk() == DONE
    assert await client.chunk() == b""

    await client.ask("GET", "/next")
    second = await recorder.engine.next()
    await second.answer(reply(HEALTHY, JSON))
    assert second.connection != first.connection
    assert (await client.reply())[1] == HEALTHY


async def test_interim_replies_without_end_are_cut_off(proxy: Served, recorder: Recorder) -> None:
    recorder.engine.reply = None
    client = await proxy.connect()
    await client.ask("GET", "/x")
    arrived = await recorder.engine.next()
    for _ in range(MAX_INTERIM):
        await arrived.send(b"HTTP/1.1 102 Processing\r\n\r\n")
    await arrived.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 2000)
    head, body = await client.reply()

    assert head.status == 502
    assert b"too many interim replies" in body
    await arrived.gone()
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


async def test_half_a_head_is_not_waited_for(
    proxy: Served, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.upstream.connection.HEAD_S", 0.0)
    recorder.engine.reply = None
    client = await proxy.connect()
    await client.ask("GET", "/x")
    arrived = await recorder.engine.next()
    await arrived.send(OK + b"Content-Le")
    head, _ = await client.reply()

    assert head.status == 502
    await arrived.gone()


async def test_stream_that_said_done_is_whole_without_a_reason(
    proxy: Served, recorder: Recorder
) -> None:
    recorder.engine.reply = chunked_head(SSE) + chunk(SAID) * 5 + chunk(DONE) + LAST_CHUNK
    client = await proxy.connect()
    await client.chat()
    head, _ = await client.reply()

    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "complete"


async def test_stream_that_said_neither_is_an_error(proxy: Served, recorder: Recorder) -> None:
    recorder.engine.reply = chunked_head(SSE) + chunk(SAID) * 5 + LAST_CHUNK
    client = await proxy.connect()
    await client.chat()
    head, _ = await client.reply()

    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"


@pytest.mark.parametrize(("told", "arrives"), [((), "no"), (("X-Accel-Buffering: yes",), "yes")])
async def test_stream_tells_a_reverse_proxy_not_to_hold_it_back(
    told: tuple[str, ...], arrives: str, proxy: Served, recorder: Recorder
) -> None:
    recorder.engine.reply = chunked_head(SSE, *told) + chunk(SAID) + LAST_CHUNK
    client = await proxy.connect()
    await client.chat()
    head, _ = await client.reply()

    assert head.every("x-accel-buffering") == [arrives]


async def test_bulk_holds_nobody_up(proxy: Served, recorder: Recorder) -> None:
    """Ten streams have a megabyte each to pass on: others go between their slices."""
    recorder.engine.reply = None
    bulk = [await proxy.connect() for _ in range(10)]
    event = b"data: " + b"y" * 65_000 + b"\n\n"
    for client in bulk:
        await client.chat()
    arrivals = [await recorder.engine.next() for _ in bulk]
    pouring = [
        asyncio.create_task(arrived.send(chunked_head(SSE) + chunk(event) * 16 + LAST_CHUNK))
        for arrived in arrivals
    ]
    reading = [asyncio.create_task(client.reply()) for client in bulk]
    passed = [0]

    async def ask(client: Client) -> None:
        await client.ask("GET", "/slowtok/health")
        await client.reply()
        passed[0] += 1

    other = await proxy.connect()
    while not all(task.done() for task in reading):
        await ask(other)
    await asyncio.gather(*pouring)

    assert passed[0] > 3
    for task in reading:
        assert task.result()[1] == event * 16


async def test_slow_readers_share_the_memory_that_there_is(
    recorder: Recorder, tmp_path: Path
) -> None:
    limit_bytes = 4_000_000
    async with serving(tmp_path, recorder.url, max_held_bytes=limit_bytes) as proxy:
        held = proxy.proxy.relay.memory_budget
        recorder.engine.reply = None
        slow = [await proxy.connect(receive_buffer_bytes=4096) for _ in range(4)]
        for client in slow:
            await client.chat()
        arrivals = [await recorder.engine.next() for _ in slow]
        block = chunk(b"data: " + b"y" * 9_000 + b"\n\n")
        wire = chunked_head(SSE) + block * 1000 + LAST_CHUNK
        pouring = [asyncio.create_task(arrived.send(wire, limit_s=60)) for arrived in arrivals]
        await until(lambda: held.now_bytes > limit_bytes // 4)
        await works_anew_beside(proxy, recorder)

        for client in slow[1:]:
            client.reset()
        _, body = await slow[0].reply()
        assert len(body) == 1000 * 9_008
        await until(lambda: held.now_bytes == 0)
        assert held.most_bytes <= limit_bytes // 2
        await asyncio.gather(*pouring, return_exceptions=True)


async def works_anew_beside(proxy: Served, recorder: Recorder) -> None:
    client = await proxy.connect()
    await client.ask("GET", "/healthy")
    await (await recorder.engine.next()).answer(reply(HEALTHY, JSON))
    assert (await client.reply())[1] == HEALTHY
