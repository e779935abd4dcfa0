"""Forwards a stream to the client: on the fast path if possible, else chunk by chunk.

A stream is changed in two cases: the usage chunk that only slowtok requested is removed, and the
record is inserted if `annotate` asks for it.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.fast_path import FastPath
from slowtok.proxy.stream.annotate import Annotator
from slowtok.proxy.stream.usage import UsageRemover
from slowtok.proxy.upstream.reply import EngineReply

UPSTREAM_BROKE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)

MakeRecord = Callable[[Exchange], Awaitable[dict[str, Any] | None]]


class RewrittenStream:
    """A stream that is changed on its way to the client: usage removed, record inserted."""

    def __init__(
        self,
        response: ClientReply,
        exchange: Exchange,
        make_record: MakeRecord,
        *,
        remover: UsageRemover | None,
        annotator: Annotator | None,
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._make_record = make_record
        self._remover = remover
        self._annotator = annotator

    @property
    def annotates(self) -> bool:
        """Whether a record is still to be inserted."""
        return self._annotator is not None and not self._annotator.is_over

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes that may go to the client now; the caller writes them."""
        passing = chunk if self._remover is None else self._remover.feed(chunk)
        return passing if self._annotator is None else self._annotator.feed(passing)

    async def write(self, chunk: bytes, at_s: float) -> None:
        """Forward a chunk, then observe it; the record is written before the last event."""
        if passing := self.feed(chunk):
            await self._response.write(passing)
        self._exchange.observe(chunk, at_s)
        if self._annotator is not None and self._annotator.ending:
            self._exchange.last_byte_at_s = at_s
            await self.close()

    async def close(self) -> None:
        """Write the bytes held back, with the record."""
        await self._release(await self._make_record(self._exchange) if self.annotates else None)

    async def abandon(self) -> None:
        """Write the bytes held back unchanged: the stream broke off."""
        await self._release(None)

    async def _release(self, record: dict[str, Any] | None) -> None:
        rest = b"" if self._remover is None else self._remover.flush()
        if self._annotator is not None:
            rest = self._annotator.feed(rest) + self._annotator.close(record)
        if rest:
            await self._response.write(rest)


async def pass_chunks(
    request: ClientRequest,
    reply: EngineReply,
    response: ClientReply,
    exchange: Exchange,
    rewritten: RewrittenStream | None,
    backlog: BacklogWatch,
    room: BacklogRoom,
    *,
    use_fast_path: bool,
) -> float | None:
    """Forward each chunk, then observe it.

    Returns when the last chunk arrived; None if the engine's stream broke off.
    """
    fast_path = None
    if use_fast_path:
        fast_path = _fast_path(request, reply, response, exchange, rewritten, backlog, room)
    while True:
        if fast_path is not None:
            await fast_path.flow()
        await room.wait()
        try:
            chunk = await reply.content.readany()
        except UPSTREAM_BROKE:
            return None
        at_s = time.monotonic()
        if not chunk:
            backlog.note()
            return at_s
        if rewritten is None:
            await response.write(chunk)
            exchange.observe(chunk, at_s)
        else:
            await rewritten.write(chunk, at_s)
        backlog.note()


def _fast_path(
    request: ClientRequest,
    reply: EngineReply,
    response: ClientReply,
    exchange: Exchange,
    rewritten: RewrittenStream | None,
    backlog: BacklogWatch,
    room: BacklogRoom,
) -> FastPath | None:
    """Return the fast path; None if the client has gone, or if `annotate` will insert a record."""
    client = request.transport
    if client is None or (rewritten is not None and rewritten.annotates):
        return None
    return FastPath(
        reply,
        client,
        request.protocol,
        chunked=response.is_chunked,
        rewrite=None if rewritten is None else rewritten.feed,
        exchange=exchange,
        backlog=backlog,
        room=room,
    )


async def break_off(request: ClientRequest, rewritten: RewrittenStream | None) -> None:
    """End the client's stream visibly broken, after the last bytes that the engine sent."""
    transport = request.transport
    if rewritten is not None:
        await rewritten.abandon()
    if transport is None:
        return
    if request.version < aiohttp.HttpVersion11 and (sock := transport.get_extra_info("socket")):
        # Without chunks or a length a plain close would look like a clean end: reset instead.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.close()
