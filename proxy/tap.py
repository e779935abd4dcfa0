"""The fast way of a stream: what a read from the engine brings goes out in the callback it came in.

Between two tokens nothing has to be decided. So a tap stands before aiohttp's own protocol of the
engine's connection, lets it take the HTTP apart as ever, and writes what comes out of it at once.
Waking a task for each token would cost a future and a walk through every coroutine from the server
down. A tap ends by itself at whatever is out of the ordinary: the end of the reply, an error, a
client that hung up or is behind. The relay's loop sees to that, as it would without a tap.
"""

import asyncio
import time
from collections.abc import Callable

from aiohttp import web

from slowtok.proxy.backlog import BacklogWatch
from slowtok.proxy.engine_reply import EngineReply
from slowtok.proxy.exchange import Exchange


class Tap(asyncio.Protocol):
    """Passes the body of `reply` to the client of `request` while `flow` is awaited.

    `chunked` says how the client's reply is framed; its head has gone. `reshape` may change what
    the client gets. After that, `exchange` is shown every piece as the engine sent it, and
    `backlog` looks at what the client has not taken.
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
        "_reshape",
        "_transport",
    )

    def __init__(
        self,
        reply: EngineReply,
        request: web.Request,
        *,
        chunked: bool,
        reshape: Callable[[bytes], bytes] | None,
        exchange: Exchange,
        backlog: BacklogWatch,
    ) -> None:
        self._content = reply.content
        self._connection = reply.connection
        self._client = request.transport
        self._flow_control = request.protocol
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
        self._transport, self._inner = connection.transport, connection.protocol
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.set_protocol(self)
        try:
            await self._ended
        finally:
            self._end()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the engine."""
        at_s = time.monotonic()
        self._inner.data_received(data)
        if not self._pass_on(at_s):
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

    def _pass_on(self, at_s: float) -> bool:
        """Pass on what the parser has put out; say whether more may go this way."""
        content, client = self._content, self._client
        if client is None:
            return False
        while content.exception() is None and not client.is_closing():
            parsed_bytes = content.total_bytes
            piece = content.read_nowait()
            if piece:
                passing = piece if self._reshape is None else self._reshape(piece)
                if passing:
                    client.write(_chunk(passing) if self._chunked else passing)
                self._exchange.observe(piece, at_s)
                self._backlog.glance(at_s)
            if content.total_bytes == parsed_bytes:  # else reading let a parser go on that paused
                return not (content.is_eof() or self._flow_control.writing_paused)
        return False

    def _end(self) -> None:
        """Step aside at once: the connection may serve another request next."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._transport.set_protocol(self._inner)
            if not ended.done():
                ended.set_result(None)


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
