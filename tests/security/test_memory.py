"""Memory is bounded over all clients together, and whatever was taken of it is given back."""

import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from fakes.client import CHAT, Client
from fakes.proxy import Served, serving
from fakes.recorder import HEALTHY, Recorder
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply, until
from security.healthy import works_anew, works_on

LIMIT_BYTES = 1_000_000
PART_BYTES = 400_000
REST_BYTES = 100_000
REPLY = b'{"text":"' + b"a" * 700_000 + b'"}'
LARGE = b'{"text":"' + b"a" * (16 << 20) + b'"}'
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"a" * 200_000)
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


@pytest.fixture
async def proxy(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Served]:
    """A proxy with little memory; at the end nothing of it is taken."""
    async with serving(tmp_path, recorder.url, max_held_bytes=LIMIT_BYTES) as served:
        yield served
        for client in served.clients:
            client.close()
        held = served.proxy.relay.memory_budget
        await until(lambda: held.now_bytes == 0)
        assert 0 < held.most_bytes <= LIMIT_BYTES


@pytest.fixture
async def choosing(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Served]:
    """The same before two engines: what a body asks for says which of them is meant."""
    upstreams = (recorder.url, "http://127.0.0.1:1")
    async with serving(tmp_path, *upstreams, max_held_bytes=LIMIT_BYTES) as served:
        yield served


async def begin(proxy: Served, *fields: str, path: str = CHAT) -> Client:
    """Send most of a body."""
    client = await proxy.connect()
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", JSON, *fields)
    head = "\r\n".join([*lines, f"Content-Length: {PART_BYTES + REST_BYTES}", "", ""])
    await client.send(head.encode() + b" " * PART_BYTES)
    return client


async def finish(client: Client) -> None:
    await client.send(b'{"messages":[]}'.ljust(REST_BYTES))


async def held(proxy: Served, size_bytes: int) -> None:
    await until(lambda: proxy.proxy.relay.memory_budget.now_bytes == size_bytes)


async def test_bodies_beyond_pass_unread(proxy: Served) -> None:
    inside = [await begin(proxy) for _ in range(2)]
    await held(proxy, 2 * PART_BYTES)
    for _ in range(4):
        beyond = await begin(proxy)
        await finish(beyond)
        head, body = await beyond.reply()

        assert (head.status, body) == (200, HEALTHY)
        assert "model" not in await proxy.record(head.get("slowtok-id"))
        await held(proxy, 2 * PART_BYTES)
    for client in inside:
        await finish(client)
        assert (await client.reply())[1] == HEALTHY
    await held(proxy, 0)


async def test_bodies_beyond_that_have_to_be_read_are_refused_and_the_others_served(
    choosing: Served,
) -> None:
    proxy = choosing
    inside = [await begin(proxy) for _ in range(2)]
    await held(proxy, 2 * PART_BYTES)
    for number in range(8):
        beyond = await begin(proxy, f"X-Request-Id: mine-{number}")
        head, body = await beyond.reply()

        error = json.loads(body)["error"]
        assert (head.status, head.get("retry-after")) == (503, "1")
        assert (error["code"], error["type"]) == ("overloaded", "slowtok_error")
        assert "raise max_held_bytes" in error["message"]
        assert head.get("x-request-id") == f"mine-{number}"
        record = await proxy.record(head.get("slowtok-id"))
        assert (record["ended"], record["status"]) == ("overloaded", 503)
        await finish(beyond)  # nobody reads it
        await works_on(beyond)
        await works_anew(proxy)
    assert (await proxy.own("/slowtok/status"))["overhead"]["held"] == {
        "now_bytes": 2 * PART_BYTES,
        "most_bytes": proxy.proxy.relay.memory_budget.most_bytes,
    }

    for client in inside:
        await finish(client)
        assert (await client.reply())[1] == HEALTHY
    await held(proxy, 0)
    again = await begin(proxy)
    await finish(again)
    assert (await again.reply())[1] == HEALTHY


@pytest.mark.parametrize(
    ("path", "fields"), [("/x", ()), (CHAT, ("Content-Encoding: gzip",))], ids=["other", "encoded"]
)
async def test_a_body_that_is_not_read_needs_no_room(
    path: str, fields: tuple[str, ...], proxy: Served
) -> None:
    full = [await begin(proxy) for _ in range(2)]
    await held(proxy, 2 * PART_BYTES)

    passing = await begin(proxy, *fields, path=path)
    await finish(passing)

    assert (await passing.reply())[1] == HEALTHY
    await held(proxy, 2 * PART_BYTES)
    assert len(full) == 2


async def test_a_body_that_could_never_be_held_passes_unread(
    proxy: Served, recorder: Recorder
) -> None:
    full = [await begin(proxy) for _ in range(2)]
    await held(proxy, 2 * PART_BYTES)
    for client in full:
        client.close()
    await held(proxy, 0)
    body = json.dumps({"model": "small", "prompt": "a" * (3 * LIMIT_BYTES)}).encode()

    client = await proxy.connect()
    await client.ask("POST", CHAT, JSON, body=body)
    head, said = await client.reply()

    assert (head.status, said) == (200, HEALTHY)
    assert body in recorder.everything()
    assert "model" not in await proxy.record(head.get("slowtok-id"))
    await held(proxy, 0)


async def test_what_passes_piece_by_piece_is_held_no_longer(
    proxy: Served, recorder: Recorder
) -> None:
    """Its beginning was, until it was too much; the rest may take long."""
    recorder.engine.reply = None
    client = await proxy.connect()
    lines = (f"POST {CHAT} HTTP/1.1", "Host: localhost", JSON, f"Content-Length: {len(LARGE)}")
    await client.send("\r\n".join([*lines, "", ""]).encode() + LARGE[: 2 * LIMIT_BYTES])
    arrived = await recorder.engine.next()
    await until(lambda: proxy.proxy.relay.memory_budget.most_bytes)
    await held(proxy, 0)
    await client.send(LARGE[2 * LIMIT_BYTES :])
    assert await arrived.body() == LARGE

    whole = reply(LARGE, JSON)
    await arrived.send(whole[: 2 * LIMIT_BYTES])
    assert (await client.head()).status == 200
    await held(proxy, 0)
    await arrived.send(whole[2 * LIMIT_BYTES :])
    assert await client.reader.readexactly(len(LARGE)) == LARGE


async def test_a_whole_reply_beyond_comes_byte_for_byte(proxy: Served, recorder: Recorder) -> None:
    full = await begin(proxy)
    await held(proxy, PART_BYTES)
    recorder.engine.reply = reply(REPLY, JSON)

    client = await proxy.connect()
    await client.chat(stream=False)
    head, body = await client.reply()

    assert (head.status, body) == (200, REPLY)
    assert head.get("slowtok-verdict") is None
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["status"], record["ended"]) == (200, "complete")
    await held(proxy, PART_BYTES)
    full.close()
    await held(proxy, 0)
    await client.chat(stream=False)
    head, body = await client.reply()
    assert body == REPLY
    assert head.get("slowtok-verdict") is not None, "there is room for it now"
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


async def test_a_whole_reply_is_held_until_its_client_took_it(
    recorder: Recorder, tmp_path: Path
) -> None:
    recorder.engine.reply = reply(LARGE, JSON)
    async with serving(tmp_path, recorder.url) as proxy:
        slow = await proxy.connect(receive_buffer_bytes=4096)
        await slow.chat(stream=False)
        assert (await slow.head()).status == 200
        assert proxy.proxy.relay.in_flight == 0
        assert proxy.proxy.relay.memory_budget.now_bytes == len(LARGE)

        taken = b""
        while len(taken) < len(LARGE):
            taken += await slow.reader.read(1 << 20)
        assert taken == LARGE
        await held(proxy, 0)

        await slow.chat(stream=False)
        assert (await slow.head()).status == 200
        assert proxy.proxy.relay.memory_budget.now_bytes == len(LARGE)
        slow.reset()
        await held(proxy, 0)


async def test_a_connection_that_is_kept_keeps_no_reply(proxy: Served, recorder: Recorder) -> None:
    recorder.engine.reply = reply(REPLY, JSON)
    client = await proxy.connect()
    await client.chat(stream=False)
    assert (await client.reply())[1] == REPLY
    await held(proxy, 0)

    bodies = [one.body for one in gc.get_objects() if isinstance(one, web.Response)]
    assert REPLY not in bodies
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)


async def leaves_in_its_body(proxy: Served, _engine: Upstream) -> str:
    client = await begin(proxy)
    await held(proxy, PART_BYTES)
    client.reset()
    return "client-gone"


async def ask(proxy: Served, engine: Upstream, *, stream: bool = False) -> tuple[Client, Arrival]:
    """Bring a request to the engine, which has answered nothing yet: all of it is held."""
    client = await proxy.connect()
    await client.chat(stream=stream, user="a" * PART_BYTES)
    arrived = await engine.next()
    await arrived.body()
    assert proxy.proxy.relay.memory_budget.now_bytes > PART_BYTES
    return client, arrived


async def leaves_before_the_answer(proxy: Served, engine: Upstream) -> str:
    client, _ = await ask(proxy, engine)
    client.reset()
    return "client-gone"


async def half_a_reply(proxy: Served, engine: Upstream) -> tuple[Client, Arrival]:
    client, arrived = await ask(proxy, engine)
    await arrived.send(reply(REPLY, JSON)[:-REST_BYTES])
    await held(proxy, len(REPLY) - REST_BYTES)
    return client, arrived


async def leaves_within_the_answer(proxy: Served, engine: Upstream) -> str:
    client, _ = await half_a_reply(proxy, engine)
    client.reset()
    return "client-gone"


async def engine_dies(proxy: Served, engine: Upstream) -> str:
    client, arrived = await ask(proxy, engine)
    arrived.reset()
    assert (await client.reply())[0].status == 502
    return "upstream-error"


async def engine_dies_within_the_answer(proxy: Served, engine: Upstream) -> str:
    client, arrived = await half_a_reply(proxy, engine)
    arrived.reset()
    assert (await client.reply())[0].status == 502
    return "upstream-error"


async def stream_begins(proxy: Served, engine: Upstream) -> str:
    """It may last for hours: what was asked is given back at its begin."""
    client, arrived = await ask(proxy, engine, stream=True)
    await arrived.send(chunked_head(SSE) + chunk(STOP))
    await client.head()
    assert await client.chunk() == STOP
    await held(proxy, 0)
    arrived.reset()
    await client.rest()
    return "upstream-error"


async def slowtok_stops(proxy: Served, engine: Upstream) -> str:
    client, _ = await half_a_reply(proxy, engine)
    proxy.proxy.relay.cut_off()
    await client.rest()
    proxy.proxy.relay._is_cut_off = False
    return "proxy-stopped"


WAYS_OUT: tuple[Callable[[Served, Upstream], Awaitable[str]], ...] = (
    *(leaves_in_its_body, leaves_before_the_answer, leaves_within_the_answer),
    *(engine_dies, engine_dies_within_the_answer, stream_begins, slowtok_stops),
)


@pytest.mark.parametrize("way_out", WAYS_OUT)
async def test_all_is_given_back(
    way_out: Callable[[Served, Upstream], Awaitable[str]], proxy: Served, recorder: Recorder
) -> None:
    recorder.engine.reply = None

    ended = await way_out(proxy, recorder.engine)

    await held(proxy, 0)
    assert (await proxy.newest())["ended"] == ended
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_anew(proxy)


async def test_all_is_given_back_where_the_engine_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path, "http://127.0.0.1:1") as proxy:
        client = await proxy.connect()
        for _ in range(2):
            await client.chat(stream=False, user="a" * PART_BYTES)
            assert (await client.reply())[0].status == 502
        await held(proxy, 0)
        assert proxy.proxy.relay.memory_budget.most_bytes > PART_BYTES


async def test_a_reply_put_together_beyond_is_refused(recorder: Recorder, tmp_path: Path) -> None:
    """It cannot pass piece by piece: the client asked for no stream."""
    async with serving(
        tmp_path, recorder.url, max_held_bytes=LIMIT_BYTES, split_nonstreamed="stream"
    ) as proxy:
        for count, status in ((4, 200), (6, 503)):
            recorder.engine.reply = (
                chunked_head(SSE) + chunk(EVENT) * count + chunk(STOP) + LAST_CHUNK
            )
            client = await proxy.connect()
            await client.chat(stream=False)
            head, body = await client.reply()
            record = await proxy.record(head.get("slowtok-id"))

            assert (head.status, record["status"]) == (status, status)
            assert (record["ended"] == "overloaded") is (b"max_held_bytes" in body) is (count == 6)
            await held(proxy, 0)
        recorder.engine.reply = reply(HEALTHY, JSON)
        await works_on(client)
