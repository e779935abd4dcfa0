"""An engine made of bytes: a TCP server whose every word, silence and end a test decides.

The proxy's own looks (they carry no `X-Request-Id`) are answered as the engine that is played
would. Every relayed request becomes an `Arrival`: its bytes, and the connection to answer on.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fakes.wire import JSON, WAIT_S, Head, read_body, reply

MODEL = "small"
CLOSE = "Connection: close"  # of the looks: a relayed request then begins on a fresh connection
Looks = dict[str, bytes]


def _json(value: Any, *fields: str) -> bytes:
    return reply(json.dumps(value).encode(), JSON, CLOSE, *fields)


def _models(owner: str, *fields: str, model: str = MODEL) -> bytes:
    entry = {"id": model, "object": "model", "owned_by": owner}
    return _json({"object": "list", "data": [entry]}, *fields)


LOOKS: dict[str, Looks] = {
    "llama-server": {
        "/v1/models": _models("llamacpp", "Server: llama.cpp"),
        "/props": _json({"build_info": "b1-0", "total_slots": 1, "is_sleeping": False}),
    },
    "vllm": {"/v1/models": _models("vllm"), "/version": _json({"version": "0.32.0"})},
    "ollama": {
        "/": reply(b"Ollama is running", CLOSE),
        "/api/version": _json({"version": "0.33.0"}),
        "/api/tags": _json({"models": [{"name": MODEL}]}),
        "/api/ps": _json({"models": []}),
    },
    "unknown": {},
}
NOT_FOUND = reply(b"{}", JSON, CLOSE, status="404 Not Found")


class Arrival:
    """One relayed request as it reached the engine; `connection` counts the connections."""

    def __init__(
        self,
        head: Head,
        connection: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.head = head
        self.connection = connection
        self.over = asyncio.Event()
        self._body: bytes | None = None
        self._reader, self._writer = reader, writer

    async def body(self) -> bytes:
        """The whole body; empty where the head announces none."""
        if self._body is None:
            framed = self.head.get("content-length") or self.head.get("transfer-encoding")
            self._body = await read_body(self._reader, self.head) if framed else b""
        return self._body

    async def receive(self) -> bytes:
        """The next bytes of the request as they are on the wire."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read(65536)

    async def send(self, data: bytes, *, limit_s: float = WAIT_S) -> None:
        self._writer.write(data)
        async with asyncio.timeout(limit_s):
            await self._writer.drain()

    def shrink_buffer(self, size_bytes: int) -> None:
        """Let little be on its way: what is sent has been taken."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size_bytes)
        self._writer.transport.set_write_buffer_limits(high=size_bytes)

    def end_sending(self) -> None:
        """Say no more, and listen on: half of the connection is closed."""
        self._writer.write_eof()

    async def answer(self, data: bytes) -> None:
        """Take the request, send the whole reply, and be ready for the next one."""
        await self.body()
        await self.send(data)
        self.over.set()

    def close(self) -> None:
        """End the connection after what was sent."""
        self._writer.close()
        self.over.set()

    def reset(self) -> None:
        """Break the connection off at once."""
        line = self._writer.get_extra_info("socket")
        if line is not None:  # else the proxy was first
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self.over.set()

    async def gone(self) -> float:
        """Wait until the proxy has closed its side; return the loop's time then."""
        try:
            async with asyncio.timeout(WAIT_S):
                while await self._reader.read(65536):
                    pass
        except ConnectionError:
            pass
        return asyncio.get_running_loop().time()


class Upstream:
    """The server. `reply` answers every request where it is set; the test does otherwise."""

    def __init__(self, kind: str) -> None:
        self.looks = dict(LOOKS[kind])
        self.reply: bytes | None = None
        self.count = 0  # relayed requests so far
        self.url = ""
        self.arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self.connections = 0  # so far, those of the looks among them
        self._tasks: set[asyncio.Task[None]] = set()

    async def next(self) -> Arrival:
        """Wait for the next relayed request."""
        async with asyncio.timeout(WAIT_S):
            return await self.arrivals.get()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = Head(await reader.readuntil(b"\r\n\r\n"))
                await self._take(Arrival(head, number, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _take(self, arrival: Arrival) -> None:
        if arrival.head.get("x-request-id") is None:
            await arrival.answer(self.looks.get(arrival.head.target, NOT_FOUND))
            arrival.close()
            return
        self.count += 1
        self.arrivals.put_nowait(arrival)
        if self.reply is not None:
            await arrival.answer(self.reply)
        await arrival.over.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def listening(kind: str, *, model: str = MODEL) -> AsyncIterator[Upstream]:
    """An engine of that kind on a free port of this machine."""
    upstream = Upstream(kind)
    if model != MODEL:
        upstream.looks["/v1/models"] = _models("llamacpp", "Server: llama.cpp", model=model)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 20)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()
        await upstream.stop()
