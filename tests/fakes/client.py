"""A client made of bytes: what it sends is what was written, what it reads is what came."""

import asyncio
import socket
import struct
from typing import Any

import orjson

from fakes.wire import WAIT_S, Head, read_body, read_chunk, read_head

CHAT = "/v1/chat/completions"


class Client:
    """One connection to the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(WAIT_S):
            await self._writer.drain()

    async def ask(
        self,
        method: str = "GET",
        target: str = "/x",
        *fields: str,
        body: bytes = b"",
        version: str = "HTTP/1.1",
    ) -> None:
        """Send a request; its `Host` and its length are written here, nothing else."""
        lines = [f"{method} {target} {version}", *fields]
        if not any(field.lower().startswith("host:") for field in fields):
            lines.insert(1, "Host: localhost")
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    async def chat(self, *fields: str, target: str = CHAT, **said: Any) -> None:
        """Send a generation request; streamed unless it says otherwise."""
        asked = {"model": "small", "stream": True, "messages": [], **said}
        await self.ask(
            "POST", target, "Content-Type: application/json", *fields, body=orjson.dumps(asked)
        )

    async def head(self) -> Head:
        return await read_head(self.reader)

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body."""
        return await read_chunk(self.reader)

    async def reply(self) -> tuple[Head, bytes]:
        """The next reply that has a body."""
        head = await self.head()
        return head, await read_body(self.reader, head)

    async def rest(self) -> bytes:
        """Everything until the connection ends."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    def end_sending(self) -> None:
        """Say no more, and listen on: half of the connection is closed."""
        self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """Vanish, as a killed process does."""
        self._writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        self._writer.transport.abort()


async def connect(port: int, *, receive_buffer_bytes: int = 0) -> Client:
    """Connect to the proxy; a small receive buffer lets little stand between the two."""
    sock = socket.socket()
    sock.setblocking(False)
    if receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    limit = receive_buffer_bytes or 64 << 20
    return Client(*await asyncio.open_connection(sock=sock, limit=limit))
