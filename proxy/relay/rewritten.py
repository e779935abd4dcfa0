"""Replies that do not pass as they are: put together from a stream, changed, or broken off."""

import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson

from slowtok.proxy.http.headers import Headers
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.stream.assemble import Assembler
from slowtok.proxy.stream.rewrite import StreamRewriter
from slowtok.proxy.upstream.client import UpstreamError
from slowtok.proxy.upstream.reply import EngineReply

MakeRecord = Callable[[Exchange], Awaitable[dict[str, Any] | None]]

MAX_STREAM_BYTES = 256 * 1024 * 1024  # a million tokens at 250 bytes each; heuristic
_OF_STREAMS = ("Content-Type", "Content-Length", "Cache-Control", "X-Accel-Buffering")


class RewrittenStream:
    """Writes to the client what `rewriter` makes of the engine's bytes."""

    def __init__(
        self,
        response: ClientReply,
        exchange: Exchange,
        rewriter: StreamRewriter,
        make_record: MakeRecord,
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._rewriter = rewriter
        self._make_record = make_record

    @property
    def annotates(self) -> bool:
        """Return True while a record is still to be put in."""
        return self._rewriter.annotates

    def feed(self, chunk: bytes) -> bytes:
        """Return what may go to the client now, to be written by the caller."""
        return self._rewriter.feed(chunk)

    async def write(self, chunk: bytes, at_s: float) -> None:
        """Pass a chunk on, then look at it; the record goes out before what ends the stream."""
        if passing := self._rewriter.feed(chunk):
            await self._response.write(passing)
        self._exchange.observe(chunk, at_s)
        if self._rewriter.ending:
            self._exchange.last_byte_at_s = at_s
            await self.close()

    async def close(self) -> None:
        """Let go of what was held back, with the record."""
        record = None
        if self._rewriter.annotates:
            record = await self._make_record(self._exchange)
        if rest := self._rewriter.close(record):
            await self._response.write(rest)

    async def abandon(self) -> None:
        """The stream broke off: let go of what was held back."""
        if rest := self._rewriter.close(None):
            await self._response.write(rest)


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


async def assemble(reply: EngineReply, exchange: Exchange, held: MemoryBudget) -> bytes:
    """Read the stream to its end and return the reply; an error in it sets the status.

    Raises:
        UpstreamError: the stream broke off, cannot be put together, or is more than may be held.
        aiohttp.ClientError, OSError: the connection broke.
    """
    if exchange.api is None or exchange.api.make_parts is None:
        raise _cannot("was not asked for")
    assembler = Assembler(exchange.api.make_parts)
    size_bytes = 0
    try:
        while chunk := await reply.content.readany():
            exchange.observe(chunk, time.monotonic())
            assembler.feed(chunk)
            size_bytes += len(chunk)
            if size_bytes > MAX_STREAM_BYTES:
                raise _cannot("is too long to be put together")
            if not held.take(exchange, len(chunk)):
                raise held.no_room(exchange, "the reply to this request")
        exchange.last_byte_at_s = time.monotonic()
        whole = assembler.whole()
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _cannot("cannot be put together") from error
    if assembler.error is not None:
        exchange.status = _status_of(assembler.error["error"])
        return orjson.dumps(assembler.error)
    if whole is None:
        raise _cannot("ended before its answer did")
    return whole


def as_document(passed: Headers) -> None:
    """Make a stream's header fields those of a whole reply."""
    for name in _OF_STREAMS:
        passed.popall(name, None)
    passed["Content-Type"] = "application/json"


def _status_of(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _cannot(why: str) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"the engine's stream {why}",
        check='did the engine crash? its own log says more; split_nonstreamed = "off" asks for '
        "whole replies",
    )
