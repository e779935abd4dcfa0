"""The fast way of a stream: what a read from the engine brings goes out in the callback it came in.

Between two tokens nothing has to be decided. So a tap stands before aiohttp's own protocol of the
engine's connection, lets it take the HTTP apart as ever, and writes what comes out of it at once.
Waking a task for each token would cost a future and a walk through every coroutine from the server
down. A read that is nothing but whole chunks need not be taken apart: it goes out as it came.

A tap ends by itself at whatever is out of the ordinary: the end of the reply, an error, a client
that hung up or is behind. The relay's loop sees to that, as it would without a tap.
"""

import asyncio
import time
from collections.abc import Callable
from typing import cast

import aiohttp
from aiohttp.base_protocol import BaseProtocol

from slowtok.proxy.backlog import BacklogWatch
from slowtok.proxy.engine_connection import EngineConnection
from slowtok.proxy.engine_reply import EngineReply
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.whole_chunks import payload_of


class Tap(asyncio.Protocol):
    """Passes the body of `reply` to a `client` while `flow` is awaited.

    `flow_control` tells when the client is behind, `chunked` how its reply is framed; the head of
    that has gone. `reshape` may change what the client gets. After that, `exchange` is shown every
    piece as the engine sent it, and `backlog` looks at what the client has not taken.
    """

    __slots__ = (
        "_backlog",
        "_chunked",
        "_client",
        "_connection",
        "_content",
        "_ended",
        "_exchange",
        "_flow_control",
        "_inner",
        "_is_between_chunks",
        "_reshape",
        "_transport",
    )

    def __init__(
        self,
        reply: EngineReply,
        client: asyncio.Transport,
        flow_control: BaseProtocol,
        *,
        chunked: bool,
        reshape: Callable[[bytes], bytes] | None,
        exchange: Exchange,
        backlog: BacklogWatch,
    ) -> None:
        self._content = reply.content
        self._connection = reply.connection
        self._client = client
        self._flow_control = flow_control
        self._chunked = chunked
        self._reshape = reshape
        self._exchange = exchange
        self._backlog = backlog
        self._ended: asyncio.Future[None] | None = None

    async def flow(self) -> None:
        """Pass on what comes, until something has to be decided; at once where it has to be now."""
        connection = self._connection
        if not self._pass_on(time.monotonic()):
            return
        if connection is None or connection.transport is None or connection.protocol is None:
            return
        self._transport = connection.transport
        self._inner = cast("EngineConnection", connection.protocol)
        self._is_between_chunks = False  # as far as is known
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.set_protocol(self)
        try:
            await self._ended
        finally:
            self._end()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the engine."""
        at_s = time.monotonic()
        if (
            self._is_between_chunks
            and not self._client.is_closing()
            and (payload := payload_of(data))
        ):
            self._write(payload, at_s, data)
            goes_on = not self._flow_control.writing_paused
        else:
            self._parse(data)
            goes_on = self._pass_on(at_s)
        if not goes_on:
            self._end()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let aiohttp know, and the relay's loop find out."""
        self._inner.connection_lost(exc)
        self._end()

    def eof_received(self) -> None:
        """Let aiohttp know."""
        self._inner.eof_received()

    def pause_writing(self) -> None:
        """Let aiohttp know."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let aiohttp know."""
        self._inner.resume_writing()

    def _parse(self, data: bytes) -> None:
        """Let aiohttp take bytes apart, and find out whether it stands between two chunks then.

        It does if the last byte, given alone, ends a chunk. Nothing less is certain: begun sizes
        leave no trace, nor does what a parser that paused holds back. And without certainty a
        client would be given other chunks than aiohttp takes for some.
        """
        inner, content = self._inner, self._content
        self._is_between_chunks = False
        if content._http_chunk_splits is None or data[-1:] != b"\n":
            inner.data_received(data)
            return
        inner.data_received(data[:-1])
        was_between = _ends_with_a_chunk(content)
        inner.data_received(data[-1:])
        if not was_between and not inner.was_paused and isinstance(data, bytes):
            # (Windows' own event loop gives bytearrays, which nobody may keep.)
            self._is_between_chunks = _ends_with_a_chunk(content)

    def _pass_on(self, at_s: float) -> bool:
        """Pass on what the parser has put out; say whether more may go this way."""
        content, client = self._content, self._client
        while content.exception() is None and not client.is_closing():
            parsed_bytes = content.total_bytes
            piece = content.read_nowait()
            if piece:
                self._write(piece, at_s)
            if content.total_bytes == parsed_bytes:  # else reading let a parser go on that paused
                return not (content.is_eof() or self._flow_control.writing_paused)
        return False

    def _write(self, piece: bytes, at_s: float, as_it_came: bytes = b"") -> None:
        """Write a piece to the client, in its own chunks where it can be, then look at it."""
        if self._reshape is not None:
            passing = self._reshape(piece)
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


def _ends_with_a_chunk(content: aiohttp.StreamReader) -> bool:
    """Say whether a chunk ended after the last byte of the body that is here."""
    ends = content._http_chunk_splits
    return ends is not None and len(ends) > 0 and ends[-1] == content.total_bytes
