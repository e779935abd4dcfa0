"""Streams that do not pass as they are: changed on their way, or broken off."""

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.rewrite import Reshaping

MakeRecord = Callable[[Exchange], Awaitable[dict[str, Any] | None]]


class Reshaped:
    """Writes to the client what `reshaping` makes of the engine's bytes."""

    def __init__(
        self,
        response: ClientReply,
        exchange: Exchange,
        reshaping: Reshaping,
        make_record: MakeRecord,
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._reshaping = reshaping
        self._make_record = make_record

    @property
    def annotates(self) -> bool:
        """Whether a record is still to be put in."""
        return self._reshaping.annotates

    def feed(self, chunk: bytes) -> bytes:
        """Return what may go to the client now, to be written by the caller."""
        return self._reshaping.feed(chunk)

    async def write(self, chunk: bytes, at_s: float) -> None:
        """Pass a chunk on, then look at it; the record goes out before what ends the stream."""
        if passing := self._reshaping.feed(chunk):
            await self._response.write(passing)
        self._exchange.observe(chunk, at_s)
        if self._reshaping.ending:
            self._exchange.last_byte_at_s = at_s
            await self.close()

    async def close(self) -> None:
        """Let go of what was held back, with the record."""
        record = None
        if self._reshaping.annotates:
            record = await self._make_record(self._exchange)
        if rest := self._reshaping.close(record):
            await self._response.write(rest)

    async def abandon(self) -> None:
        """The stream broke off: let go of what was held back."""
        if rest := self._reshaping.close(None):
            await self._response.write(rest)


async def break_off(request: ClientRequest, reshaped: Reshaped | None) -> None:
    """End the client's stream visibly broken, after the last bytes that the engine sent."""
    transport = request.transport
    if reshaped is not None:
        await reshaped.abandon()
    if transport is None:
        return
    if request.version < aiohttp.HttpVersion11 and (sock := transport.get_extra_info("socket")):
        # Without chunks or a length a plain close would look like a clean end: reset instead.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.close()
