"""The connections to engines: opened by aiohttp's connector, and kept by our own few lines."""

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from slowtok.proxy.engine_connection import EngineConnection
from slowtok.proxy.fair_reads import FairReads

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey

_RELAYED = hash("what is relayed")


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
