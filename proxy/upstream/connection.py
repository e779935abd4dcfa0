"""A connection to an engine: parses its replies, and reads not one byte beyond them.

It is reused only if a reply ended exactly with the last byte read: bytes after that belong to no
request, and must not become the reply to the next one.
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
UNREAD_REPLY_BYTES = 256 * 1024  # read after a request could not be sent; as one read of the loop
HEAD_S = 30.0  # from a head's first byte to its last; before that, a prefill may take long
_NO_BYTES = b""


class _BytesProcessor(Protocol):
    def process_bytes(self, data: bytes) -> None: ...


class EngineConnection(asyncio.Protocol):
    """One connection to an engine; parses its replies.

    `should_close`: it must not be reused. `idle` is the queue of idle connections it returns to.
    """

    transport: asyncio.Transport | None

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_head_bytes: int,
        keep: "Callable[[EngineConnection], None]",
        fair_reads: FairReads,
        idle: "deque[EngineConnection]",
    ) -> None:
        self.idle = idle
        self.transport = None
        self.should_close = False
        self.was_idle = False  # it has served another request
        self.idle_since_s = 0.0  # by the loop's clock
        self.writing_paused = False
        self.has_reply_bytes = False  # a byte of the reply
        self.body: ReplyBody | None = None  # of the reply, once its head is there
        self._event_loop = loop
        self._max_head_bytes = max_head_bytes
        self._keep = keep
        self._fair_reads = fair_reads
        self._begun: tuple[ReplyHead, aiohttp.StreamReader] | None = None
        self._content: aiohttp.StreamReader | None = None
        self._head: HeadReader | None = None  # while one is expected
        self._error: BaseException | None = None  # with which the reply did not come
        self._head_waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._is_refused = False
        self._head_timer: asyncio.TimerHandle | None = None
        self.unread = _NO_BYTES  # by us: what waits for its turn
        self._awaits_turn = False
        self._reader_is_behind = False  # whoever reads the body is

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self.transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport of the connection that was opened."""
        self.transport = cast("asyncio.Transport", transport)

    def expect_reply(self, *, with_body: bool) -> None:
        """Prepare for the reply to the next request; a reply to HEAD has no body."""
        self.has_reply_bytes, self.body, self._begun = False, None, None
        self._head = HeadReader(self._max_head_bytes, to_head=not with_body)

    async def read_head(self) -> tuple[ReplyHead, aiohttp.StreamReader]:
        """Return the head of the reply, and the reader of its body, once the head has arrived.

        Raises:
            aiohttp.ClientError, OSError: the connection ended, or the request could not be sent.
            BadReply: the engine's bytes are no valid reply.
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
        """Raise `error` in whoever waits for the head."""
        self._error = error
        self.should_close = True
        _wake(self._head_waiter)

    def is_silent(self) -> bool:
        """Return True if the connection is open and has received nothing since its last reply.

        The kernel is asked as well: bytes that have just arrived have not been read yet.
        """
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_close:
            return False
        sock = transport.get_extra_info("socket")
        if sock is None or not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        return not poll.poll(0)

    def release(self) -> None:
        """Return to the idle connections; bytes that arrive there set `should_close`."""
        self._keep(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the engine; a large read waits for its turn (`FairReads`)."""
        if len(data) > SLICE_BYTES or self.unread:
            self.defer_bytes(data)
        else:
            self.process_bytes(bytes(data))  # Windows' own event loop gives bytearrays

    def defer_bytes(self, data: bytes) -> None:
        """Queue bytes and pause reading until they have been processed."""
        self.unread = self.unread + data if self.unread else bytes(data)
        self._pause()
        if self._awaits_turn or self._reader_is_behind:
            return
        if self._fair_reads.is_busy:
            self._request_turn()
        else:
            self.pass_next_slice()

    def pass_next_slice(self) -> None:
        """Process the next slice; resume reading when nothing is left."""
        self._awaits_turn = False
        if self._reader_is_behind:
            return  # `resume_reading` asks for another turn
        slice_, self.unread = self.unread[:SLICE_BYTES], self.unread[SLICE_BYTES:]
        transport = self.transport
        if slice_ and transport is not None:
            # the fast path, or this connection
            processor = cast("_BytesProcessor", transport.get_protocol())
            processor.process_bytes(slice_)
        if self.unread:
            self._request_turn()
        elif not self._reader_is_behind:
            self._resume()

    def pop_unread(self) -> bytes:
        """Return and clear the queued bytes, when the connection ended and no turn will come."""
        unread, self.unread = self.unread, _NO_BYTES
        return unread

    def process_bytes(self, data: bytes) -> None:
        """Parse bytes: of a body, of a head, or unexpected ones."""
        if self._content is not None:
            self._feed(data)
        elif self._head is None:
            self.should_close = True
        else:
            self.has_reply_bytes = True
            self._read_head(self._head, data)

    def _read_head(self, reader: HeadReader, data: bytes) -> None:
        """Parse bytes of a head; once begun, it has to be complete within `HEAD_S`."""
        try:
            head = reader.feed(data)
        except BadReply as error:
            self._refuse(error)
            return
        if head is not None:
            self._begin(head, reader.rest)
        elif reader.has_begun and self._head_timer is None:
            self._head_timer = self._event_loop.call_later(HEAD_S, self._head_timed_out)

    def _begin(self, head: ReplyHead, rest: bytes) -> None:
        """Hand over the head, and begin with the body."""
        self._head = None
        self._cancel_head_timer()
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
        """End the body; its reader's end-of-file callback may release the connection."""
        body, content = self.body, self._content
        assert body is not None  # noqa: S101 - for the type checker
        assert content is not None  # noqa: S101
        self._content = None
        self.should_close = self.should_close or bool(body.rest or self.unread)
        content.feed_eof()

    def _refuse(self, error: BadReply) -> None:
        """Stop reading a malformed reply.

        The body then ends as broken when the connection is lost, a moment later, so that its valid
        part is still forwarded.
        """
        self._head, self.unread = None, _NO_BYTES
        self._cancel_head_timer()
        self.should_close = self._is_refused = True
        if self._content is None:
            self.fail(error)
        if self.transport is not None:
            self.transport.close()

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(BadReply("an incomplete header"))

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_reading(self) -> None:
        """Pause: the reader of the body is behind."""
        self._reader_is_behind = True
        self._pause()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume. aiohttp's reader calls this after each piece, paused or not."""
        if not self._reader_is_behind:
            return
        self._reader_is_behind = False
        if self._awaits_turn:
            return
        if self.unread:
            self._request_turn()
        else:
            self._resume()

    def pause_writing(self) -> None:
        """Note that the engine reads more slowly than the request is sent."""
        self.writing_paused = True

    def resume_writing(self) -> None:
        """Note that the engine has caught up."""
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

    def _request_turn(self) -> None:
        self._awaits_turn = True
        self._fair_reads.request_turn(self)

    def _pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def close(self) -> None:
        """Close; abort if the request was not fully sent, since the engine may never read it."""
        self._cancel_head_timer()
        self.unread = _NO_BYTES
        transport, self.transport = self.transport, None
        if transport is None:
            return
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the body: completely if the connection's end is its framing, else as broken."""
        self._cancel_head_timer()
        self.should_close = True
        unread = self.pop_unread() + (self._unread_reply_bytes() if exc is not None else _NO_BYTES)
        if unread:
            self.process_bytes(unread)
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

    def _unread_reply_bytes(self) -> bytes:
        """Return reply bytes that the kernel holds after a request could not be sent.

        An engine that rejects a request may answer and hang up before it has read all of it.
        Writing then fails and the loop stops reading, although the reply has arrived.
        """
        transport = self.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        is_plain = transport is not None and transport.get_extra_info("ssl_object") is None
        if sock is not None and is_plain and sys.platform != "win32":
            with contextlib.suppress(OSError):
                return os.read(sock.fileno(), UNREAD_REPLY_BYTES)
        return _NO_BYTES


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
