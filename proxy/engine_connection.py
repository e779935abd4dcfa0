"""Connections to engines: opened by aiohttp's connector, read and kept by our own few lines.

One is used again only where its reply ended exactly with what was read: whatever an engine says
beyond that is nobody's answer.
"""

import asyncio
import select
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from slowtok.proxy.fair_reads import SLICE_BYTES, FairReads
from slowtok.proxy.reply_body import ReplyBody
from slowtok.proxy.reply_head import (
    FINAL,
    HEAD_END,
    STARTS_WITH,
    SWITCHING,
    BadReply,
    ReplyHead,
    parse_head,
)

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey

READ_BUFFER_BYTES = 64 * 1024  # twice as much may wait to be read, then the engine is held back
MAX_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 16  # replies that announce one; Go's client took 5, and nobody was heard to complain
HEAD_S = 30.0  # from a head's first byte to its last; the silence before that may be a long prefill


class _Taker(Protocol):
    def take(self, data: bytes) -> None: ...


_RELAYED = hash("what is relayed")
_NO_BYTES = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an engine is asked: what is the same for all requests to it.

    `request` is one for aiohttp's connector, which wants to see one; it is never sent. `path`
    comes before each target; `origin` is for messages. `idle` are the connections that are kept for
    the next request, the one that has rested longest first.
    """

    request: aiohttp.ClientRequest
    host: str
    path: str
    origin: str
    idle: "deque[EngineConnection]"


class _ToRelay(aiohttp.ClientRequest):
    """What is relayed has connections of its own: aiohttp keeps each kind under another key."""

    @property
    def connection_key(self) -> "ConnectionKey":
        """As aiohttp's, and one that no request of its session has."""
        return super().connection_key._replace(proxy_headers_hash=_RELAYED)


class EngineConnector(aiohttp.TCPConnector):
    """Opens connections as aiohttp does, and keeps them for later itself, each for `keep_s`.

    To aiohttp a kept one is in use until it is closed: to give it back and take it again for each
    request costs more than to write the request.

    One that was spoken on meanwhile is closed and not used: one client would get what was meant for
    another. Nor is one shared with aiohttp's own session, which asks the engines how they are and
    keeps its connections by its own rules.
    """

    def __init__(self, max_head_bytes: int, keep_s: float, **options: Any) -> None:
        super().__init__(keepalive_timeout=keep_s, **options)
        turns = FairReads(self._loop)
        make = partial(EngineConnection, self._loop, max_head_bytes, self._keep, turns)
        self._factory = cast("partial[ResponseHandler]", make)
        self._keep_s = keep_s
        self._addresses: dict[str, Address] = {}  # by URL, of which the settings have a few
        self._idle: dict[ConnectionKey, deque[EngineConnection]] = {}
        self._closing_old: asyncio.TimerHandle | None = None

    def address(self, base_url: str) -> Address:
        """Return how the engine at `base_url` is asked."""
        known = self._addresses.get(base_url)
        if known is None:
            url = URL(base_url, encoded=True)
            request = _ToRelay("GET", url, loop=self._loop)
            known = self._addresses[base_url] = Address(
                request=request,
                host=url.host_port_subcomponent or "",
                path=url.raw_path.rstrip("/"),
                origin=str(url.origin()),
                idle=self._idle.setdefault(request.connection_key, deque()),
            )
        return known

    async def reach(self, address: Address, limits: aiohttp.ClientTimeout) -> Connection:
        """Return a connection that was kept; without one it is opened.

        Raises:
            aiohttp.ClientError, OSError: it could not be, as aiohttp's `connect` says it.
        """
        reached = self._take(address.idle)
        if reached is None:
            reached = await self.connect(address.request, [], limits)
            protocol = cast("EngineConnection", reached.protocol)
            protocol.lease, protocol.idle = reached, address.idle
        return reached

    def _take(self, idle: "deque[EngineConnection]") -> Connection | None:
        oldest_s = self._loop.time() - self._keep_s
        while idle:
            kept = idle.popleft()
            if kept.rested_at_s >= oldest_s and kept.is_silent():
                kept.was_idle = True
                return kept.lease
            kept.lease.close()
        return None

    def _keep(self, connection: "EngineConnection") -> None:
        if self._closed or connection.should_close:
            connection.lease.close()
            return
        connection.rested_at_s = self._loop.time()
        connection.idle.append(connection)
        if self._closing_old is None:
            self._closing_old = self._loop.call_later(self._keep_s, self._close_old)

    def _close_old(self) -> None:
        """Close what nobody took in time; look again when the next one has rested so long."""
        self._closing_old = None
        now_s = self._loop.time()
        for idle in self._idle.values():
            while idle and idle[0].rested_at_s + self._keep_s <= now_s:
                idle.popleft().lease.close()
        due_s = [idle[0].rested_at_s + self._keep_s for idle in self._idle.values() if idle]
        if due_s:
            self._closing_old = self._loop.call_at(min(due_s), self._close_old)

    def _close(self, *, abort_ssl: bool = False) -> list[Awaitable[object]]:
        if self._closing_old is not None:
            self._closing_old.cancel()
        ended = super()._close(abort_ssl=abort_ssl)  # with those that are kept: see above
        for idle in self._idle.values():
            while idle:
                idle.popleft().lease.close()
        return ended


class EngineConnection(ResponseHandler):
    """One connection to an engine, which takes its replies apart.

    aiohttp's session is served as by its own, whose parser it brings with each request.
    """

    was_idle = False  # it has served another request
    rested_at_s = 0.0  # by the loop's clock
    lease: Connection  # by which aiohttp's connector knows it
    idle: "deque[EngineConnection]"  # where it is kept

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_head_bytes: int,
        keep: "Callable[[EngineConnection], None]",
        turns: FairReads,
    ) -> None:
        super().__init__(loop)
        self.heard = False  # a byte of the reply
        self.body: ReplyBody | None = None  # of the reply, once its head is there
        self._max_head_bytes = max_head_bytes
        self._keep = keep
        self._turns = turns
        self._content: aiohttp.StreamReader | None = None
        self._expects = False
        self._to_head = False
        self._head = _NO_BYTES  # as far as it has come
        self._heads_bytes = 0  # those of interim replies included
        self._interim = 0
        self._is_refused = False
        self._head_late: asyncio.TimerHandle | None = None
        self.unread = _NO_BYTES  # by us: what waits for its turn
        self._awaits_turn = False
        self._is_behind = False  # whoever reads the body is

    def expect_reply(self, *, with_body: bool) -> None:
        """Be ready for the reply to the next request; one to HEAD comes without its body."""
        self.heard, self.body = False, None
        self._expects, self._to_head = True, not with_body
        self._heads_bytes = self._interim = 0

    def is_silent(self) -> bool:
        """Say whether the connection is there and nothing has been said on it since its reply.

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

    def rest(self) -> None:
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
            self.go_on()

    def go_on(self) -> None:
        """Pass on the next slice; read on when nothing is left."""
        self._awaits_turn = False
        if self._is_behind:
            return  # `resume_reading` asks for another turn
        slice_, self.unread = self.unread[:SLICE_BYTES], self.unread[SLICE_BYTES:]
        transport = self.transport
        if slice_ and transport is not None:
            taker = cast("_Taker", transport.get_protocol())  # a tap, or this connection itself
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
        if self._parser is not None:
            super().data_received(data)
        elif self._content is not None:
            self._feed(data)
        elif not self._expects:
            self._should_close = True
        elif data:
            self.heard = True
            seen_bytes = len(self._head)
            self._head += data
            self._read_heads(max(seen_bytes - 2, 0))

    def _read_heads(self, at: int) -> None:
        """Take heads off what has come, until one begins the reply; none ends before `at`."""
        while self._expects and (found := HEAD_END.search(self._head, at)) is not None:
            at = 0
            raw, self._head = self._head[: found.end()], self._head[found.end() :]
            self._heads_bytes += len(raw)
            try:
                self._bound_heads(0)
                head = parse_head(raw, to_head=self._to_head)
                if head.status < FINAL and head.status != SWITCHING:
                    self._interim += 1
                    continue
            except BadReply as error:
                self._refuse(error)
                return
            self._begin(head)
        if self._expects:
            try:
                if not self._head.startswith(STARTS_WITH[: len(self._head)]):
                    raise BadReply("no HTTP")
                self._bound_heads(len(self._head))
            except BadReply as error:
                self._refuse(error)
                return
            if self._head and self._head_late is None:
                self._head_late = self._loop.call_later(HEAD_S, self._be_late)

    def _bound_heads(self, begun_bytes: int) -> None:
        if self._heads_bytes + begun_bytes > self._max_head_bytes:
            raise BadReply("a header that is too long")
        if self._interim > MAX_INTERIM:
            raise BadReply("more interim replies than anybody needs")

    def _begin(self, head: ReplyHead) -> None:
        """Hand over a head, and begin with the body."""
        self._expects = False
        self._be_in_time()
        rest, self._head = self._head, _NO_BYTES
        self._should_close = self._should_close or head.should_close
        body = self.body = ReplyBody(head)
        content = self._content = aiohttp.StreamReader(
            cast("Any", self), READ_BUFFER_BYTES, loop=self._loop
        )
        error = None
        if body.is_over:
            body.rest = rest
        elif rest:
            pieces, error = body.feed(rest)
            for piece in pieces:
                content.feed_data(piece)
        if error is not None:  # nothing has gone out yet: it is no reply at all
            self._content = None
            self._refuse(error)
            return
        self.feed_data((cast("Any", head), content), 0)
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
        self._should_close = self._should_close or bool(body.rest or self.unread)
        content.feed_eof()

    def _refuse(self, error: BadReply) -> None:
        """Read no more of what cannot be relied on.

        A body ends broken with its connection, a moment later: what was right of it goes out.
        """
        self._expects, self._head, self.unread = False, _NO_BYTES, _NO_BYTES
        self._be_in_time()
        self._should_close = self._is_refused = True
        if self._content is None:
            self.set_exception(error)
        if self.transport is not None:
            self.transport.close()

    def _be_late(self) -> None:
        self._head_late = None
        self._refuse(BadReply("half a header, and no more"))

    def _be_in_time(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None

    def pause_reading(self) -> None:
        """Bring no more: the body's reader is behind."""
        if self._parser is not None:
            super().pause_reading()
            return
        self._is_behind = True
        self._pause()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Bring more. aiohttp resumes what never was paused, too, after each piece read."""
        if self._parser is not None:
            super().resume_reading(resume_parser)
        elif self._is_behind:
            self._is_behind = False
            if self._awaits_turn:
                return
            if self.unread:
                self._ask_for_turn()
            else:
                self._resume()

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
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the body with the connection: well only where it is framed by a clean end."""
        self._be_in_time()
        if unread := self.take_unread():
            self.take(unread)
        content, self._content = self._content, None
        if content is not None:
            if exc is None and self.body is not None and self.body.ends_with_the_connection:
                content.feed_eof()
            else:
                content.set_exception(aiohttp.ClientPayloadError("the connection ended"))
        self._expects = False
        super().connection_lost(exc)
