"""Ten thousand connections at once to a proxy as it is by default: a polite no, and no harm."""

import asyncio
import contextlib
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from fakes.bystander import STOP, begin, next_request_works, pass_on
from fakes.client import Client
from fakes.commands import served
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, chunk

COUNT = 10_000
MOST = 1000  # fewer than the default, so that nine of ten are refused
SPARE = 200  # descriptors of this process
REQUEST = b"GET /slowtok/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
MAX_BYTES = 100 << 20  # that all of it may cost for a while; 1,000 clients are about 20 MiB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@pytest.fixture
def descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = COUNT + SPARE + psutil.Process().num_fds()
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("this system does not allow so many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ask_with_all(port: int) -> Counter[bytes]:
    """Connect with all of them, then ask on each; count the words of the answers."""
    said: Counter[bytes] = Counter()
    with contextlib.ExitStack() as held:
        address = ("127.0.0.1", port)
        lines = [held.enter_context(socket.create_connection(address, 10)) for _ in range(COUNT)]
        for line in lines:
            try:
                line.sendall(REQUEST)
                said[line.recv(12)] += 1
            except ConnectionError:
                said[b"reset"] += 1
    return said


async def test_ten_thousand_connections(
    descriptors: None,
    engine: Upstream,
    tmp_path: Path,
    connect: Callable[..., Awaitable[Client]],
) -> None:
    env = {"SLOWTOK_MAX_CONNECTIONS": str(MOST)}
    async with served(tmp_path, "--upstream", engine.url, env=env) as running:
        port = int((await running.address()).rpartition(":")[2])
        process = psutil.Process(running.process.pid)
        client = await connect(port)
        arrived = await begin(engine, client)
        before = process.memory_info().rss

        asking = asyncio.create_task(asyncio.to_thread(ask_with_all, port))
        number = 0
        while not asking.done():
            await pass_on(arrived, client, number)
            number += 1
            await asyncio.sleep(0.01)
        said = await asking

        assert said[b"HTTP/1.1 200"] == MOST - 1, said
        assert said.total() == COUNT
        assert set(said) <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b"", b"reset"}
        assert process.memory_info().rss - before < MAX_BYTES
        await arrived.send(chunk(STOP) + LAST_CHUNK)
        assert [await client.chunk(), await client.chunk()] == [STOP, b""]
        arrived.over.set()
        await next_request_works(engine, client)
        async with asyncio.timeout(20):  # until it has noticed that they have left
            while len(process.net_connections("tcp")) > 10:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await running.end() == 0
        assert running.err == [""]
    assert number > 20, "the stream went on meanwhile"
