"""Odd framings, cuts at any byte, and ends at any moment, on both sides of the real relay.

A client gets the right bytes or a visible break, never another's; an engine gets whole requests as
they were sent, or ones that break off. Judged by a reader of HTTP of the tests' own.

Bounded and the same in every run. `FUZZ=20000` tries that many others (`make fuzz`), and a failure
names its seed: `FUZZ_SEED=N` runs that one again.
"""

import asyncio
import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import pytest

from fakes.client import connect
from fakes.odd_http import Planned, plan
from fakes.proxy import Served, serving
from fakes.strict_http import Message, State, read_reply, read_request
from fakes.wire import reply, until

TRIES = int(os.environ.get("FUZZ", "120")) // 2
FIRST = int(os.environ["FUZZ_SEED"]) if "FUZZ_SEED" in os.environ else None
SEEDS = range(TRIES) if FIRST is None else range(FIRST, FIRST + 1)
CLIENTS = 8
REQUESTS = 4  # most that one of them asks for over its connection
LIMIT_S = 60.0  # for all that one client asks; it takes a second, on a machine that has time
NOT_FOUND = reply(b"{}", "Connection: close", status="404 Not Found")


class Engine:
    """Does to each request what was planned; what it heard of each connection is kept."""

    def __init__(self, plans: dict[int, Planned], seed: int) -> None:
        self._plans = plans
        self._rng = random.Random(f"engine {seed}")
        self.heard: list[bytearray] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.heard.append(heard)
        with contextlib.suppress(ConnectionError):
            while (planned := await self._next(reader, writer, heard)) is not None:
                await trickle(self._rng, writer, planned.reads)
                if planned.ends == "reset":
                    reset(writer)
                if planned.ends:
                    break
        writer.close()

    async def _next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bytearray
    ) -> Planned | None:
        """The plan of the next request, once it is here; the proxy's own looks know none."""
        begin = len(heard)
        while (asked := read_request(bytes(heard[begin:]))).state is State.CUT_OFF:
            data = await reader.read(1 << 16)
            if not data:
                return None
            heard += data
        number = asked.get(b"x-number")
        if number is None:
            del heard[begin:]
            writer.write(NOT_FOUND)
            return None
        return self._plans[int(number)]


async def trickle(
    rng: random.Random, writer: asyncio.StreamWriter, pieces: tuple[bytes, ...]
) -> None:
    for piece in pieces:
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(piece)
        await writer.drain()
        for _ in range(rng.choice((0, 1, 5))):
            await asyncio.sleep(0)


def reset(writer: asyncio.StreamWriter) -> None:
    line = writer.get_extra_info("socket")
    if line is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Asking:
    """One client: asks for what is planned, one after the other or all at once, and judges."""

    def __init__(self, plans: list[Planned], rng: random.Random, *, is_hostile: bool) -> None:
        self._plans = plans
        self._rng = rng
        self._may_break = is_hostile
        self._came = bytearray()
        self._ended = self._is_over = False

    async def run(self, port: int) -> None:
        client = await connect(port)
        reader, writer = client.reader, client._writer
        pipelined = self._rng.random() < 0.3
        try:
            async with asyncio.timeout(LIMIT_S):
                if pipelined:
                    asking = asyncio.create_task(self._ask_all(writer))
                    await self._hear_all(reader)
                    await asking
                else:
                    for planned in self._plans:
                        if not await self._ask(planned, writer) or self._is_over:
                            return
                        await self._hear(planned, reader)
        finally:
            client.close()

    async def _ask_all(self, writer: asyncio.StreamWriter) -> None:
        for planned in self._plans:
            if not await self._ask(planned, writer):
                return

    async def _hear_all(self, reader: asyncio.StreamReader) -> None:
        for planned in self._plans:
            await self._hear(planned, reader)

    async def _ask(self, planned: Planned, writer: asyncio.StreamWriter) -> bool:
        """Send a request; say whether it went out whole."""
        with contextlib.suppress(ConnectionError):
            if planned.leaves_after is None:
                await trickle(self._rng, writer, planned.sent)
                return True
            await trickle(self._rng, writer, (b"".join(planned.sent)[: planned.leaves_after],))
            reset(writer)
            self._is_over = True
        return False

    async def _hear(self, planned: Planned, reader: asyncio.StreamReader) -> None:
        """Read until the reply is whole, or nothing more comes; judge it."""
        while (found := self._read(planned)).state is State.CUT_OFF and not self._is_over:
            try:
                data = await reader.read(1 << 16)
            except ConnectionError:
                self._is_over = True
            else:
                self._came += data
                self._ended = self._is_over = not data
        del self._came[: found.size_bytes or None]  # what broke off has no next one behind it
        if planned.leaves_after is None:
            assert_right(planned, found, may_break=self._may_break)

    def _read(self, planned: Planned) -> Message:
        return read_reply(bytes(self._came), ended=self._ended, asked=planned.method)


def assert_right(planned: Planned, found: Message, *, may_break: bool) -> None:
    """The reply is the planned one, or, where something was wrong, no whole one."""
    number = found.get(b"x-number")
    assert found.state is not State.NONE, "what came is no HTTP"
    assert number in (None, b"%d" % planned.number), "another's reply"
    if number is None and found.state is State.WHOLE:
        assert may_break, "a sound reply became an error"
        assert found.get(b"slowtok-id") is not None
        assert found.status >= 500
        return
    assert planned.body.startswith(found.body), "wrong bytes"
    if found.state is State.CUT_OFF:
        assert may_break, "a sound reply broke off"
        return
    assert planned.is_whole, "a part looks whole"
    assert (found.status, found.body) == (planned.status, planned.body)


def assert_asked_rightly(heard: bytes, plans: dict[int, Planned]) -> None:
    """What an engine heard is requests as they were sent, but for a last one that broke off."""
    while heard:
        found = read_request(heard)
        assert found.state is not State.NONE, heard[:300]
        number = found.get(b"x-number")
        if number is not None:
            planned = plans[int(number)]
            assert planned.asked_body.startswith(found.body)
            if found.state is State.WHOLE:
                assert found.body == planned.asked_body
                assert found.first.split(b" ")[0] == planned.method
        if found.state is State.CUT_OFF:
            return
        heard = heard[found.size_bytes :]


@pytest.mark.parametrize("is_hostile", [False, True], ids=["sound", "hostile"])
async def test_right_bytes_or_a_visible_break(is_hostile: bool, tmp_path: Path) -> None:
    for seed in SEEDS:
        try:
            await one_world(seed, tmp_path, is_hostile=is_hostile)
        except (AssertionError, TimeoutError, ExceptionGroup) as error:
            raise AssertionError(f"FUZZ_SEED={seed}: {error!r}") from error


async def one_world(seed: int, tmp_path: Path, *, is_hostile: bool) -> None:
    """Several clients at once, one engine; then nothing is left, and the next request works."""
    rng = random.Random(f"{seed} {is_hostile}")
    plans: dict[int, Planned] = {}
    clients: list[Asking] = []
    for _ in range(CLIENTS):
        count = rng.randint(1, REQUESTS)
        mine = [
            plan(rng, len(plans) + i, is_hostile=is_hostile, is_last=i == count - 1)
            for i in range(count)
        ]
        plans |= {planned.number: planned for planned in mine}
        own = random.Random(f"client {seed} {len(clients)}")
        clients.append(Asking(mine, own, is_hostile=is_hostile))
    next_one = plan(rng, len(plans), is_hostile=False, is_last=True)
    plans[next_one.number] = next_one
    engine = Engine(plans, seed)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with serving(tmp_path, url) as proxy:
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(client.run(proxy.port))
            await assert_clear(proxy)
            after = Asking([next_one], rng, is_hostile=False)
            await after.run(proxy.port)
    finally:
        server.close()
    for heard in engine.heard:
        assert_asked_rightly(bytes(heard), plans)


async def assert_clear(proxy: Served) -> None:
    await until(lambda: proxy.proxy.observer.in_flight == 0)
    assert proxy.proxy.observer.failures == {}
    await until(lambda: proxy.proxy.relay.memory_budget.now_bytes == 0)
    assert await proxy.own("/slowtok/health") == {"status": "ok"}
