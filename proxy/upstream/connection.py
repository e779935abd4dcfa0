"""One connection to an engine: its replies taken apart, and never one byte more than is theirs.

It is used again only where its reply ended exactly with what was read: whatever an engine says
beyond that is nobody's answer.
"""

import asyncio
import contextlib
import os
import select
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import aiohttp

from slowtok.proxy.http.aiohttp_private import make_stream_reader
from slowtok.proxy.upstream.fair_reads import SLICE_BYTES, FairReads
from slowtok.proxy.upstream.reply_body import ReplyBody
from slowtok.proxy.upstream.reply_head import BadReply, HeadReader, ReplyHead

READ_BUFFER_BYTES = 64 * 1024  # twice as much may wait to be read, then the engine is held back
MAX_HEAD_BYTES = 64 * 1024
LAST_WORDS_BYTES = 256 * 1024  # of a reply, when the request could not be sent; one read of a loop
HEAD_S = 30.0  # from a head's first byte to its last; the silence before that may be a long prefill
_NO_BYTES = b""


class _Taker(Protocol):
    def take(self, data: bytes) -> None: ...


class EngineConnection(asyncio.Protocol):
    """One connection to an engine, which takes its replies apart.

    `should_close`: no other request may be sent over it. `idle` is where it is kept.
    """

    transport: asyncio.Transport | None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_head_bytes: int,
        keep: "Callable[[EngineConnection], None]",
        turns: FairReads,
        idle: "deque[EngineConnection]",
    ) -> None:
        self.idle = idle
        self.transport = None
        self.should_close = False
        self.was_idle = False  # it has served another request
        self.rested_at_s = 0.0  # by the loop's clock
        self.writing_paused = False
        self.heard = False  # a byte of the reply
        self.body: ReplyBody | None = None  # of the reply, once its head is there
        self._event_loop = loop
        self._max_head_bytes = max_head_bytes
        self._keep = keep
        self._turns = turns
        self._begun: tuple[ReplyHead, aiohttp.StreamReader] | None = None
        self._content: aiohttp.StreamReader | None = None
        self._head: HeadReader | None = None  # while one is expected
        self._error: BaseException | None = None  # with which the reply did not come
        self._head_waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_refused = False
        self._head_late: asyncio.TimerHandle | None = None
        self.unread = _NO_BYTES  # by us: what waits for its turn
        self._awaits_turn = False
        self._is_behind = False  # whoever reads the body is

    @property
    def connected(self) -> bool:
        """Return True while the connection is open."""
        return self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection that was opened."""
        self.transport = cast("asyncio.Transport", transport)

    def expect_reply(self, *, with_body: bool) -> None:
        """Be ready for the reply to the next request; one to HEAD comes without its body."""
        self.heard, self.body, self._begun = False, None, None
        self._head = HeadReader(self._max_head_bytes, to_head=not with_body)

    async def read_head(self) -> tuple[ReplyHead, aiohttp.StreamReader]:
        """Return the head of the reply, and what its body comes through, once the head is here.

        Raises:
            aiohttp.ClientError, OSError: the connection ended, or the request could not be sent.
            BadReply: what came is no reply.
        """
        if self._begun is None and self._error is None:
            self._head_waiter = self._event_loop.create_future()
            try:
                await self._head_waiter
            finally:
                self._head_waiter = None
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        raise cast("BaseException", self._error)

    def fail(self, error: BaseException) -> None:
        """Let whoever waits for the head have an error in its place."""
        self._error = error
        self.should_close = True
        _wake(self._head_waiter)

    def is_silent(self) -> bool:
        """Return True if the connection is there and nothing has been said on it since its reply.

        The kernel is asked, too: what came a moment ago has not been read yet.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_close:
            return False
        line = transport.get_extra_info("socket")
        if line is None or not hasattr(select, "poll"):
            return True
        looking = select.poll()
        looking.register(line.fileno(), select.POLLIN)
        return not looking.poll(0)

    def release(self) -> None:
        """Be kept for the next request; whatever is said until then makes `should_close` true."""
        self._keep(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the engine; many at once wait for their turns."""
        if len(data) > SLICE_BYTES or self.unread:
            self.keep_waiting(data)
        else:
            self.take(data)

    def keep_waiting(self, data: bytes) -> None:
        """Read no more until these bytes have been passed on."""
        self.unread = self.unread + data if self.unread else bytes(data)
        self._pause()
        if self._awaits_turn or self._is_behind:
            return
        if self._turns.is_busy:
            self._ask_for_turn()
        else:
            self.pass_next_slice()

    def pass_next_slice(self) -> None:
        """Pass on the next slice; read on when nothing is left."""
        self._awaits_turn = False
        if self._is_behind:
            return  # `resume_reading` asks for another turn
        slice_, self.unread = self.unread[:SLICE_BYTES], self.unread[SLICE_BYTES:]
        transport = self.transport
        if slice_ and transport is not None:
            taker = cast("_Taker", transport.get_protocol())  # the fast path, or this connection
            taker.take(slice_)
        if self.unread:
            self._ask_for_turn()
        elif not self._is_behind:
            self._resume()

    def take_unread(self) -> bytes:
        """Return what still waited for its turn: the connection ended, so there is none."""
        unread, self.unread = self.unread, _NO_BYTES
        return unread

    def take(self, data: bytes) -> None:
        """Take bytes apart."""
        if self._content is not None:
            self._feed(data)
        elif self._head is None:
            self.should_close = True
        else:
            self.heard = True
            self._read_head(self._head, data)

    def _read_head(self, reader: HeadReader, data: bytes) -> None:
        """Take bytes of a head; one that has begun has to be here soon."""
        try:
            head = reader.feed(data)
        except BadReply as error:
            self._refuse(error)
            return
        if head is not None:
            self._begin(head, reader.rest)
        elif reader.has_begun and self._head_late is None:
            self._head_late = self._event_loop.call_later(HEAD_S, self._be_late)

    def _begin(self, head: ReplyHead, rest: bytes) -> None:
        """Hand over a head, and begin with the body."""
        self._head = None
        self._be_in_time()
        self.should_close = self.should_close or head.should_close
        body = self.body = ReplyBody(head)
        content = make_stream_reader(self, READ_BUFFER_BYTES, self._event_loop)
        pieces, error = body.feed(rest)
        if error is not None:  # nothing has gone out yet: it is no reply at all
            self._refuse(error)
            return
        self._content = content
        for piece in pieces:
            content.feed_data(piece)
        self._begun = (head, content)
        _wake(self._head_waiter)
        if body.is_over:
            self._end()

    def _feed(self, data: bytes) -> None:
        body, content = self.body, self._content
        assert body is not None  # noqa: S101 - for the type checker
        assert content is not None  # noqa: S101
        if self._is_refused:
            return
        pieces, error = body.feed(data)
        for piece in pieces:
            content.feed_data(piece)
        if error is not None:
            self._refuse(error)
        elif body.is_over:
            self._end()

    def _end(self) -> None:
        """End the body; whoever waits for that may have the connection kept."""
        body, content = self.body, self._content
        assert body is not None  # noqa: S101 - for the type checker
        assert content is not None  # noqa: S101
        self._content = None
        self.should_close = self.should_close or bool(body.rest or self.unread)
        content.feed_eof()

    def _refuse(self, error: BadReply) -> None:
        """Read no more of what cannot be relied on.

        A body ends broken with its connection, a moment later: what was right of it goes out.
        """
        self._head, self.unread = None, _NO_BYTES
        self._be_in_time()
        self.should_close = self._is_refused = True
        if self._content is None:
            self.fail(error)
        if self.transport is not None:
            self.transport.close()

    def _be_late(self) -> None:
        self._head_late = None
        self._refuse(BadReply("an incomplete header"))

    def _be_in_time(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None

    def pause_reading(self) -> None:
        """Bring no more: the body's reader is behind."""
        self._is_behind = True
        self._pause()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Bring more. aiohttp's reader asks for that after each piece, paused or not."""
        if not self._is_behind:
            return
        self._is_behind = False
        if self._awaits_turn:
            return
        if self.unread:
            self._ask_for_turn()
        else:
            self._resume()

    def pause_writing(self) -> None:
        """Note that the engine is behind with reading."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """Note that it has caught up."""
        self.writing_paused = False
        _wake(self._writable)

    async def drain(self) -> None:
        """Wait until the engine has caught up with what was written.

        Raises:
            ConnectionError: the connection has ended.
        """
        if self.writing_paused and self.transport is not None:
            self._writable = self._event_loop.create_future()
            try:
                await self._writable
            finally:
                self._writable = None
        if self.transport is None:
            raise aiohttp.ClientConnectionResetError("the connection has ended")

    def _ask_for_turn(self) -> None:
        self._awaits_turn = True
        self._turns.ask(self)

    def _pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close; at once where not all has been sent, which an engine may never take."""
        self._be_in_time()
        self.unread = _NO_BYTES
        transport, self.transport = self.transport, None
        if transport is None:
            return
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the body with the connection: well only where it is framed by a clean end."""
        self._be_in_time()
        self.should_close = True
        unread = self.take_unread() + (self._last_words() if exc is not None else _NO_BYTES)
        if unread:
            self.take(unread)
        content, self._content = self._content, None
        if content is not None:
            if exc is None and self.body is not None and self.body.ends_with_the_connection:
                content.feed_eof()
            else:
                content.set_exception(aiohttp.ClientPayloadError("the connection ended"))
        self._head = self.transport = None
        if isinstance(exc, OSError):
            exc = aiohttp.ClientOSError(*exc.args)
        self.fail(exc or aiohttp.ServerDisconnectedError())
        _wake(self._writable)

    def _last_words(self) -> bytes:
        """Return what the kernel holds of the reply when the request could not be sent.

        An engine that wants no more of a request answers and hangs up. Writing fails then, and the
        loop reads no more, though the answer may be here.
        """
        transport = self.transport
        line = None if transport is None else transport.get_extra_info("socket")
        is_plain = transport is not None and transport.get_extra_info("ssl_object") is None
        if line is not None and is_plain and sys.platform != "win32":
            with contextlib.suppress(OSError):
                return os.read(line.fileno(), LAST_WORDS_BYTES)
        return _NO_BYTES


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
