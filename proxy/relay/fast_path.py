"""The fast path of a stream: what one read brings is written to the client in the same callback.

Between two tokens nothing has to be decided. So while a stream flows, `FastPath` is the protocol of
the engine's transport; it lets the engine's connection parse the HTTP, and writes what comes out at
once. Waking a task for each token would cost a future and a walk through every coroutine from the
server down. A read that is nothing but whole chunks need not be parsed: it goes out as it came.
Only what no two readers could take for different things passes for such: a size is plain, written
without a sign, a zero before it or an extension, and the chunk is exactly as long.

It ends by itself at whatever is out of the ordinary: the end of the reply, an error, a client
that hung up or is behind. The relay's loop sees to that, as it would without the fast path.
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
_LONGEST = 10  # of the size's line
_KEPT_LINES = 1024  # a stream's chunks are of few sizes


class FlowControl(Protocol):
    """Who knows whether a client is behind."""

    @property
    def writing_paused(self) -> bool:
        """Return True if it has as much as it may have."""
        ...


class FastPath(asyncio.Protocol):
    """Passes the body of `reply` to a `client` while `flow` is awaited.

    `flow_control` tells when the client is behind, `chunked` how its reply is framed; the head of
    that has gone. `rewrite` may change what the client gets. After that, `exchange` is shown every
    piece as the engine sent it, and `backlog` looks at what the client has not taken. For that
    there must be `room`.
    """

    __slots__ = (
        "_backlog",
        "_body",
        "_chunked",
        "_client",
        "_connection",
        "_content",
        "_ended",
        "_exchange",
        "_flow_control",
        "_inner",
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
        """Pass on what comes, until something has to be decided; at once where it has to be now."""
        connection = self._connection
        if not self._pass_on(time.monotonic()):
            return
        if connection is None or connection.transport is None:
            return
        self._transport, self._inner = connection.transport, connection
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.set_protocol(self)
        try:
            await self._ended
        finally:
            self._end()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the engine; many at once wait for their turns."""
        if len(data) > SLICE_BYTES or self._inner.unread:
            self._inner.keep_waiting(data)
        else:
            self.take(bytes(data))  # Windows' own event loop gives bytearrays

    def take(self, data: bytes) -> None:
        """Pass bytes on: as they came where they are whole chunks, else what is made of them."""
        at_s = time.monotonic()
        if (
            self._body.is_between_chunks
            and not self._client.is_closing()
            and (payload := strip_chunk_framing(data))
        ):
            self._write(payload, at_s, data)
            goes_on = self._room.fits() and not self._flow_control.writing_paused
        else:
            self._inner.take(data)
            goes_on = self._pass_on(at_s)
        if not goes_on:
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let the connection know, and the relay's loop find out."""
        if unread := self._inner.take_unread():
            self.take(unread)
        self._inner.connection_lost(exc)
        self._end()

    def eof_received(self) -> None:
        """Let the connection know."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Let the connection know."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let the connection know."""
        self._inner.resume_writing()

    def _pass_on(self, at_s: float) -> bool:
        """Pass on what of the body is here; say whether more may go this way."""
        content = self._content
        if content.exception() is not None or self._client.is_closing():
            return False
        if piece := content.read_nowait():
            self._write(piece, at_s)
        if content.is_eof() or self._flow_control.writing_paused:
            return False
        return self._room.fits()

    def _write(self, piece: bytes, at_s: float, as_it_came: bytes = b"") -> None:
        """Write a piece to the client, in its own chunks where it can be, then look at it."""
        if self._rewrite is not None:
            passing = self._rewrite(piece)
            if passing:
                self._client.write(_chunk(passing) if self._chunked else passing)
        elif self._chunked:
            self._client.write(as_it_came or _chunk(piece))
        else:
            self._client.write(piece)
        self._exchange.observe(piece, at_s)
        self._backlog.glance(at_s)

    def _end(self) -> None:
        """Step aside at once: the connection may serve another request next."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._transport.set_protocol(self._inner)
            if not ended.done():
                ended.set_result(None)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def strip_chunk_framing(read: bytes) -> bytes:
    """Return what the chunks in `read` hold; nothing where it is not exactly whole chunks.

    The last chunk, which is empty, is none of them.
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
    """Return the size that a line tells; 0 where it is anything but a size."""
    return int(line, 16) if _SIZE_LINE.fullmatch(line) else 0
