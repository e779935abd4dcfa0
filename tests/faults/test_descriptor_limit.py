"""As many connections as the system allows, and then a polite no; nobody who is there notices.

The limit is lowered for a process of its own, so that a few dozen connections stand for thousands.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from multidict import CIMultiDict

from fakes.bystander import STOP, begin, next_request_works, pass_on
from fakes.client import Client
from fakes.commands import Running, served
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, chunk, reply
from slowtok.proxy.server.connection_limit import (
    MAX_REFUSALS,
    OWN_DESCRIPTORS,
    raise_descriptor_limit,
)
from slowtok.proxy.upstream.client import UpstreamError, make_session, send

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits are POSIX; counts, /proc")

Connect = Callable[..., Awaitable[Client]]

DESCRIPTORS = 160
MOST = (DESCRIPTORS - OWN_DESCRIPTORS - MAX_REFUSALS) // 2
FLOOD = 500
LIMITED = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")


@asynccontextmanager
async def limited(engine: Upstream, state_dir: Path) -> AsyncIterator[tuple[Running, int]]:
    async with served(state_dir, "--upstream", engine.url, within=LIMITED) as running:
        yield running, int((await running.address()).rpartition(":")[2])


async def refusal(client: Client) -> None:
    """Ask, and be told why not."""
    await client.chat(stream=False, messages=[{"role": "user", "content": "a" * 100_000}])
    head, body = await client.reply()
    assert (head.status, head.get("retry-after"), head.get("connection")) == (503, "1", "close")
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert await client.rest() == b""
    client.close()


async def test_one_more_than_there_is_room_for(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with limited(engine, tmp_path) as (running, port):
        streams = []
        for _ in range(MOST):
            client = await connect(port)
            streams.append((await begin(engine, client), client))

        for _ in range(2 * MAX_REFUSALS):
            await refusal(await connect(port))

        for arrived, client in streams:
            await pass_on(arrived, client, 1)
            await arrived.send(chunk(STOP) + LAST_CHUNK)
            assert [await client.chunk(), await client.chunk()] == [STOP, b""]
            arrived.over.set()
        await next_request_works(engine, streams[0][1])
        counts: dict[str, Any] = {}
        async with asyncio.timeout(20):
            while counts.get("connections_refused") != 2 * MAX_REFUSALS:  # told a moment later
                await streams[0][1].ask("GET", "/slowtok/status")
                counts = json.loads((await streams[0][1].reply())[1])["counts"]
        assert counts["failures"] == {}
        assert await running.end() == 0
        assert running.err == [""]
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    told = [event for event in events if event["event"] == "connections-refused"]
    assert [event["most"] for event in told] == [MOST], "once, not for each of them"


async def test_a_flood_of_connections(engine: Upstream, tmp_path: Path, connect: Connect) -> None:
    async with limited(engine, tmp_path) as (running, port):
        client = await connect(port)
        arrived = await begin(engine, client)
        silent = [await connect(port) for _ in range(MOST - 1)]  # they are let in before the others
        asking: list[Client] = []

        async def ask() -> bytes:
            one = await connect(port)
            asking.append(one)
            with contextlib.suppress(ConnectionError):
                await one.ask("GET", "/slowtok/health")
                return await one.rest()
            return b""

        replies = await asyncio.gather(*(ask() for _ in range(FLOOD)))
        assert {said[:12] for said in replies} <= {b"", b"HTTP/1.1 503"}
        assert b"HTTP/1.1 503" in {said[:12] for said in replies}
        assert psutil.Process(running.process.pid).num_fds() < DESCRIPTORS
        for number in range(20):
            await pass_on(arrived, client, number)

        silent[0].close()
        for one in (*silent[1:], *asking):
            one.close()
        arrived.close()
        client.close()
        async with asyncio.timeout(10):  # until it has noticed that they have left
            while True:
                again = await connect(port)
                await again.ask("GET", "/slowtok/health")
                if (await again.head()).status == 200:
                    break
        assert await running.end() == 0


async def test_no_descriptor_left_for_an_engine_is_not_the_engines_fault() -> None:
    async with make_session(1.0) as session:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            with pytest.raises(UpstreamError) as caught:
                await send(session, "http://127.0.0.1:9", "GET", "/", CIMultiDict(), None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (caught.value.status, caught.value.ended) == (503, "overloaded")
    assert "Too many open files" in caught.value.failed


async def test_such_a_request_is_recorded_as_what_it_was(
    proxy: Served, engine: Upstream, connect: Connect
) -> None:
    client = await connect(proxy.port)
    await client.ask("GET", "/slowtok/health")
    await client.reply()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        await client.chat()
        head, _ = await client.reply()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert head.status == 503
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record["status"]) == ("overloaded", 503)
    assert record["verdict"] == "unknown"
    engine.reply = reply(b"{}", JSON)
    await client.chat(stream=False)
    assert (await client.reply())[0].status == 200


def test_as_many_as_wanted_where_the_system_allows_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_descriptor_limit(100) == 100
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], 65_536)
        assert raise_descriptor_limit(1_000_000) == (min(before[1], 65_536) - 96) // 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
