"""Fast path of a stream: writes each engine read to the client in the same callback.

Why: waking a task for each token would cost a future and a walk through all coroutines of the
server, although nothing has to be decided between two tokens. So while a stream flows, `FastPath`
replaces the engine's connection as the protocol of its transport. The connection still parses the
HTTP; `FastPath` writes what comes out of it.

A read that consists of complete chunks is not parsed at all, but forwarded as it came. It has to be
unambiguous: a size without sign, leading zero or extension, and a chunk of exactly that size.

The fast path ends at anything unusual: the end of the reply, an error, a client that disconnected
or is behind. The relay's loop (`streaming.pass_chunks`) then handles it.
"""

import asyncio
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.upstream.fair_reads import SLICE_BYTES
from slowtok.proxy.upstream.reply import EngineReply

_SIZE_LINE = re.compile(rb"[1-9a-fA-F][0-9a-fA-F]{0,7}\r\n")
_LONGEST = 10  # bytes of a size line
_KEPT_LINES = 1024  # a stream's chunks are of few sizes


class FlowControl(Protocol):
    """The client's protocol, which knows whether the client is behind."""

    @property
    def writing_paused(self) -> bool:
        """Whether the client's write buffer is full."""
        ...


class FastPath(asyncio.Protocol):
    """Forwards the body of `reply` to `client` while `flow` is awaited.

    The head of the client's reply has been sent; `chunked` is its framing. `flow_control` and
    `room` stop the fast path when the client is behind. `rewrite` may change what the client gets;
    `exchange` observes each piece as the engine sent it, and `backlog` watches what the client has
    not read.
    """

    __slots__ = (
        "_backlog",
        "_body",
        "_chunked",
        "_client",
        "_connection",
        "_content",
        "_ended",
        "_engine_protocol",
        "_exchange",
        "_flow_control",
        "_rewrite",
        "_room",
        "_transport",
    )

    def __init__(
        self,
        reply: EngineReply,
        client: asyncio.Transport,
        flow_control: FlowControl,
        *,
        chunked: bool,
        rewrite: Callable[[bytes], bytes] | None,
        exchange: Exchange,
        backlog: BacklogWatch,
        room: BacklogRoom,
    ) -> None:
        self._body = reply.body
        self._content = reply.content
        self._connection = reply.connection
        self._client = client
        self._flow_control = flow_control
        self._chunked = chunked
        self._rewrite = rewrite
        self._exchange = exchange
        self._backlog = backlog
        self._room = room
        self._ended: asyncio.Future[None] | None = None

    async def flow(self) -> None:
        """Forward what arrives until the relay's loop has to decide, which may be at once."""
        connection = self._connection
        if not self._pass_on(time.monotonic()):
            return
        if connection is None or connection.transport is None:
            return
        self._transport, self._engine_protocol = connection.transport, connection
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.set_protocol(self)
        try:
            await self._ended
        finally:
            self._end()

    def data_received(self, data: bytes) -> None:
        """Forward bytes of the engine; a large read waits for its turn (`FairReads`)."""
        if len(data) > SLICE_BYTES or self._engine_protocol.unread:
            self._engine_protocol.defer_bytes(data)
        else:
            self.process_bytes(bytes(data))  # Windows' own event loop gives bytearrays

    def process_bytes(self, data: bytes) -> None:
        """Forward bytes: complete chunks as they came, anything else after parsing."""
        at_s = time.monotonic()
        if (
            self._body.is_between_chunks
            and not self._client.is_closing()
            and (payload := strip_chunk_framing(data))
        ):
            self._write(payload, at_s, data)
            may_continue = self._room.fits() and not self._flow_control.writing_paused
        else:
            self._engine_protocol.process_bytes(data)
            may_continue = self._pass_on(at_s)
        if not may_continue:
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forward what is left, tell the engine's connection, and end the fast path."""
        if unread := self._engine_protocol.pop_unread():
            self.process_bytes(unread)
        self._engine_protocol.connection_lost(exc)
        self._end()

    def eof_received(self) -> None:
        """Tell the engine's connection."""
        self._engine_protocol.eof_received()

    def pause_writing(self) -> None:
        """Tell the engine's connection."""
        self._engine_protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the engine's connection."""
        self._engine_protocol.resume_writing()

    def _pass_on(self, at_s: float) -> bool:
        """Forward the buffered bytes of the body; return True if the fast path may go on."""
        content = self._content
        if content.exception() is not None or self._client.is_closing():
            return False
        if piece := content.read_nowait():
            self._write(piece, at_s)
        if content.is_eof() or self._flow_control.writing_paused:
            return False
        return self._room.fits()

    def _write(self, piece: bytes, at_s: float, raw_chunks: bytes = b"") -> None:
        """Write a piece to the client, in the engine's own chunks if possible, then observe it."""
        if self._rewrite is not None:
            passing = self._rewrite(piece)
            if passing:
                self._client.write(_chunk(passing) if self._chunked else passing)
        elif self._chunked:
            self._client.write(raw_chunks or _chunk(piece))
        else:
            self._client.write(piece)
        self._exchange.observe(piece, at_s)
        self._backlog.glance(at_s)

    def _end(self) -> None:
        """Give the transport back to the connection, which may serve another request next."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._transport.set_protocol(self._engine_protocol)
            if not ended.done():
                ended.set_result(None)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def strip_chunk_framing(read: bytes) -> bytes:
    """Return the payload of the chunks in `read`; empty if it is not exactly complete chunks.

    The last chunk of a body, which is empty, does not count as one.
    """
    pieces = []
    at = 0
    while at < len(read):
        begin = read.find(b"\n", at, at + _LONGEST) + 1
        end = begin + _size(read[at:begin])
        at = end + 2
        if end == begin or read[end:at] != b"\r\n":
            return b""
        pieces.append(read[begin:end])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@lru_cache(_KEPT_LINES)
def _size(line: bytes) -> int:
    """Return the size in a chunk's size line; 0 if it is not a plain size."""
    return int(line, 16) if _SIZE_LINE.fullmatch(line) else 0
