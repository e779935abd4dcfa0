"""Processes that are killed or stopped, around a real `slowtok serve`."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fakes.client import CHAT, Client, connect
from fakes.commands import Running, served
from fakes.paced_engine import EngineProcess, engine_process, token, whole_stream
from fakes.wire import LAST_CHUNK, Head, read_body

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, and /proc for counting")

TOKENS = 60
GAP_S = 0.02
CLIENT = f"""
import socket, sys
body = b'{{"model":"small","stream":true,"max_tokens":1000000}}'
with socket.socket() as client:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", int(sys.argv[1])))
    head = b"POST {CHAT} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: %d\\r\\n\\r\\n"
    client.sendall(head % len(body) + body)
    print(len(client.recv(4096)), flush=True)
    while client.recv(65536):
        pass
"""


class Setup:
    """A proxy as a process of its own, in front of two engines that are processes, too."""

    def __init__(self, proxy: Running, address: str, engines: list[EngineProcess]) -> None:
        self.process = psutil.Process(proxy.process.pid)
        self.small, self.large = engines
        self.port = int(address.rpartition(":")[2])
        self._clients: list[Client] = []

    async def begin(self, model: str, tokens: int = TOKENS, gap_s: float = GAP_S) -> "Stream":
        """Begin a stream of that model, up to its first token."""
        client = await self.ask(model, tokens, gap_s)
        head, begun = await client.head(), await client.chunk()
        assert begun.startswith(token(0))  # on a busy machine others came with it
        return Stream(client, head, begun)

    async def ask(self, model: str, tokens: int = TOKENS, gap_s: float = GAP_S) -> Client:
        client = await connect(self.port)
        self._clients.append(client)
        await client.chat(model=model, max_tokens=tokens, gap_s=gap_s)
        return client

    async def own(self, path: str) -> Any:
        async with httpx.AsyncClient(timeout=10) as client:
            return (await client.get(f"http://127.0.0.1:{self.port}/slowtok/{path}")).json()

    async def record_of(self, head: Head) -> Any:
        return await self.own(f"requests/{head.get('slowtok-id')}")

    async def newest_that_ended(self, ended: str) -> Any:
        async with asyncio.timeout(10):
            while True:
                records = await self.own("requests?limit=1")
                if records and records[0]["ended"] == ended:
                    return records[0]
                await asyncio.sleep(0.02)

    def close(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def running(tmp_path: Path, **settings: str) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine_process(name)) for name in ("small", "large")
        ]
        named = [part for engine in engines for part in ("--upstream", engine.url)]
        proxy = await stack.enter_async_context(served(tmp_path, *named, env=settings))
        setup = Setup(proxy, await proxy.address(), engines)
        try:
            yield setup
        finally:
            setup.close()
        assert await proxy.end() == 0, proxy.err
        assert proxy.err == [""]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream whose first chunk was read."""

    client: Client
    head: Head
    begun: bytes

    async def is_whole(self) -> bool:
        """Read to its clean end, and say whether nothing was missing."""
        async with asyncio.timeout(30):
            rest = await read_body(self.client.reader, self.head)
        return self.begun + rest == whole_stream(TOKENS)

    async def is_broken(self) -> bool:
        """Read to the end of the connection, and say whether it came without that of the stream."""
        return not (await self.client.rest()).endswith(LAST_CHUNK)


async def test_engine_that_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        healthy = await setup.begin("large")
        doomed = await setup.begin("small", tokens=100_000)

        setup.small.signal(signal.SIGKILL)

        assert await doomed.is_broken()
        assert (await setup.record_of(doomed.head))["ended"] == "upstream-error"
        refused = await setup.ask("small")
        head, _ = await refused.reply()
        assert head.status == 502
        assert (await setup.record_of(head))["ended"] == "upstream-refused"
        assert await healthy.is_whole()
        assert await (await setup.begin("large")).is_whole()


async def test_engine_that_is_stopped_and_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        healthy = await setup.begin("large")
        stopped = await setup.begin("small")
        setup.small.signal(signal.SIGSTOP)
        left = await setup.ask("small")

        assert await healthy.is_whole(), "somebody else's engine does not answer"
        left.close()
        assert (await setup.newest_that_ended("client-gone"))["model"] == "small"
        setup.small.signal(signal.SIGCONT)

        assert await stopped.is_whole()
        assert (await setup.record_of(stopped.head))["ended"] == "stop"
        assert await (await setup.begin("small")).is_whole()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_client_that_is_killed_or_stopped(number: int, tmp_path: Path) -> None:
    async with running(tmp_path, SLOWTOK_CLIENT_TIMEOUT_S="0.5") as setup:
        healthy = await setup.begin("large")
        before = setup.process.num_fds()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, str(setup.port)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(10):
                assert int(await process.stdout.readline()) > 0
            process.send_signal(number)

            record = await setup.newest_that_ended("client-gone")
            assert record["model"] == "small"
            assert await healthy.is_whole()
            assert (await setup.own("status"))["counts"]["in_flight"] == 0
            assert setup.process.num_fds() <= before + 2, "connections kept for later, no more"
            assert await (await setup.begin("small")).is_whole()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_sampling_process_that_is_killed_or_hangs(number: int, tmp_path: Path) -> None:
    """How it is replaced is in tests/proxy/sampling/test_supervisor.py."""
    async with running(tmp_path) as setup:
        healthy = await setup.begin("large")
        sampling = (await setup.own("status"))["overhead"]["sampling"]
        os.kill(sampling["pid"], number)
        try:
            assert await healthy.is_whole()
            record = await setup.record_of(healthy.head)
            assert record["ended"] == "stop"
            assert record["timing"]["ttft_ms"] > 0
            whole = await connect(setup.port)
            await whole.chat(model="small", stream=False)
            assert (await whole.reply())[0].status == 200
            whole.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(sampling["pid"], signal.SIGKILL)


async def test_log_says_what_became_of_each(tmp_path: Path) -> None:
    async with running(tmp_path) as setup:
        doomed = await setup.begin("small", tokens=100_000)
        setup.small.signal(signal.SIGKILL)
        await doomed.is_broken()
        await setup.record_of(doomed.head)
        await (await setup.begin("large")).is_whole()

    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    ended = {event["model"]: event["ended"] for event in events if event["event"] == "request"}
    assert ended == {"small": "upstream-error", "large": "stop"}
