"""HTTP/1.1 as bytes, for both ends of the proxy: read strictly, a broken message raises."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

WAIT_S = 15.0  # bounds every wait in the tests; nothing takes nearly as long, nor on a busy machine


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a message: its first line, and its fields in order."""

    raw: bytes

    @property
    def first_line(self) -> str:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1")

    @property
    def fields(self) -> list[tuple[str, str]]:
        lines = self.raw.decode("latin-1").split("\r\n")[1:-2]
        return [
            (name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)
        ]

    @property
    def status(self) -> int:
        return int(self.first_line.split()[1])

    @property
    def target(self) -> str:
        return self.first_line.split()[1]

    def every(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def get(self, name: str) -> str | None:
        return next(iter(self.every(name)), None)


async def until(true: Callable[[], object]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def read_head(reader: asyncio.StreamReader) -> Head:
    async with asyncio.timeout(WAIT_S):
        return Head(await reader.readuntil(b"\r\n\r\n"))


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk; the last one is empty. Raises `IncompleteReadError` where the stream broke."""
    async with asyncio.timeout(WAIT_S):
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        if not size:
            assert await read_trailer(reader) == b""
            return b""
        data = await reader.readexactly(size + 2)
    assert data.endswith(b"\r\n")
    return data[:-2]


async def read_trailer(reader: asyncio.StreamReader) -> bytes:
    """The field lines after the last chunk's size; the empty line is read, too."""
    trailer = b""
    async with asyncio.timeout(WAIT_S):
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailer += line
    return trailer


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    """The body that the head announces; to the end of the connection where it announces none."""
    if head.get("transfer-encoding") == "chunked":
        pieces = []
        while piece := await read_chunk(reader):
            pieces.append(piece)
        return b"".join(pieces)
    length = head.get("content-length")
    async with asyncio.timeout(WAIT_S):
        return await (reader.read() if length is None else reader.readexactly(int(length)))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def reply(body: bytes = b"", *fields: str, status: str = "200 OK") -> bytes:
    """A whole reply with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked_head(*fields: str, status: str = "200 OK") -> bytes:
    """The head of a reply that comes in chunks."""
    lines = [f"HTTP/1.1 {status}", "Transfer-Encoding: chunked", *fields]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


SSE = "Content-Type: text/event-stream"
JSON = "Content-Type: application/json"
