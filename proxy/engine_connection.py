"""Connections to engines: aiohttp's own, opened by its connector, four things mended.

What an engine says unasked is nobody's answer, a body ends with its connection, and neither to keep
a connection nor to read from it costs more than it must.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.tracing import Trace

READ_BUFFER_BYTES = 64 * 1024  # asyncio's 256 KiB costs an mmap per read
MAX_HEAD_BYTES = 64 * 1024


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


class EngineConnector(aiohttp.TCPConnector):
    """Opens connections as aiohttp does, and keeps them for later itself, each for `keep_s`.

    To aiohttp a kept one is in use until it is closed: to give it back and take it again for each
    request costs more than to write the request.

    One that was spoken on meanwhile is closed and not used. aiohttp takes what an engine says too
    much, as after a wrong Content-Length, for the answer to the next request: one client would get
    what was meant for another.
    """

    def __init__(self, max_head_bytes: int, keep_s: float, **options: Any) -> None:
        super().__init__(keepalive_timeout=keep_s, **options)
        make = partial(EngineConnection, self._loop, max_head_bytes, self._keep)
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
            request = aiohttp.ClientRequest("GET", url, loop=self._loop)
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
            if kept.rested_at_s >= oldest_s and kept.is_connected() and not kept.should_close:
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

    async def _get(self, key: "ConnectionKey", traces: list["Trace"]) -> Connection | None:
        """Return one that aiohttp's own session gave back, or else one that is kept here.

        That session asks the engines how they are; what serves it may serve a request, too.
        """
        while (kept := await super()._get(key, traces)) is not None:
            protocol = cast("EngineConnection", kept.protocol)
            if not protocol.should_close:
                protocol.was_idle = True
                return kept
            kept.close()
        idle = self._idle.get(key)
        return None if idle is None else self._take(idle)

    def _close(self, *, abort_ssl: bool = False) -> list[Awaitable[object]]:
        if self._closing_old is not None:
            self._closing_old.cancel()
        ended = super()._close(abort_ssl=abort_ssl)  # with those that are kept: see above
        for idle in self._idle.values():
            while idle:
                idle.popleft().lease.close()
        return ended


class EngineConnection(ResponseHandler):
    """One connection to an engine, which takes its replies apart."""

    was_idle = False  # it has served another request
    was_paused = False  # while this reply came
    rested_at_s = 0.0  # by the loop's clock
    lease: Connection  # by which aiohttp's connector knows it
    idle: "deque[EngineConnection]"  # where it is kept

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        max_head_bytes: int,
        keep: "Callable[[EngineConnection], None]",
    ) -> None:
        super().__init__(loop)
        self._max_head_bytes = max_head_bytes
        self._keep = keep

    def expect_reply(self, *, with_body: bool) -> None:
        """Be ready for the reply to the next request; one to HEAD comes without its body."""
        self.was_paused = False
        self.set_response_params(
            skip_payload=not with_body,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            max_line_size=self._max_head_bytes,
            max_field_size=self._max_head_bytes,
        )

    def rest(self) -> None:
        """Expect nothing until the next request, and be kept for it.

        Without a parser every byte that comes makes `should_close` true. With one, half a head that
        nobody asked for would be forgotten with the parser.
        """
        self._parser = None
        self._keep(self)

    def pause_reading(self) -> None:
        """Pause, and know it for the rest of the reply: the parser may pause after reading went on.

        A pause at a chunk's end takes effect at the next chunk. Unless it is resumed then once
        more, what came with that is held back until the engine sends again, if it does.
        """
        self.was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume what was paused. aiohttp resumes what never was, too, after each piece read.

        That costs as much as to read the piece, for each token.
        """
        if self.was_paused:
            super().resume_reading(resume_parser)

    def close(self) -> None:
        """Close; at once where not all has been sent, which an engine may never take."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the body with the connection.

        aiohttp does so, too, except for malformed chunks: it drops the connection then, and
        whoever reads the body would wait for ever.
        """
        body = self._payload
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection ended"))
