"""The connections to engines: opened here, and kept here for the next request."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakSet

import aiohappyeyeballs
import aiohttp
from yarl import URL

from slowtok.proxy.upstream.connection import EngineConnection
from slowtok.proxy.upstream.fair_reads import FairReads

NEXT_ADDRESS_S = 0.25  # until another address of a name is tried, too (RFC 8305, section 8)
RESOLVED_S = 60  # as long as the addresses of a name are believed; heuristic


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an engine is asked: what is the same for all requests to it.

    `path` comes before each target; `origin` is for messages. `idle` are the connections that are
    kept for the next request, the one that has rested longest first.
    """

    url: URL
    host: str
    path: str
    origin: str
    idle: "deque[EngineConnection]"


class EngineConnector(aiohttp.TCPConnector):
    """Connects the session that asks the engines how they are, and apart from it what is relayed.

    What is relayed has connections of its own, each kept for `keep_s`: to give one back to aiohttp
    and take it again for each request costs more than to write the request, and what aiohttp knows
    of each takes more memory than the stream on it. One that was spoken on meanwhile is closed and
    not used: one client would get what was meant for another.
    """

    def __init__(self, max_head_bytes: int, keep_s: float, **options: Any) -> None:
        super().__init__(keepalive_timeout=keep_s, **options)
        self._event_loop = asyncio.get_running_loop()
        self._turns = FairReads(self._event_loop)
        self._max_head_bytes = max_head_bytes
        self._keep_s = keep_s
        self._addresses: dict[str, Address] = {}  # by URL, of which the settings have a few
        self._opened = WeakSet[EngineConnection]()
        self._resolved: dict[str, tuple[float, Sequence[aiohappyeyeballs.AddrInfoType]]] = {}
        self._closing_old: asyncio.TimerHandle | None = None

    def address(self, base_url: str) -> Address:
        """Return how the engine at `base_url` is asked."""
        known = self._addresses.get(base_url)
        if known is None:
            url = URL(base_url, encoded=True)
            known = self._addresses[base_url] = Address(
                url=url,
                host=url.host_port_subcomponent or "",
                path=url.raw_path.rstrip("/"),
                origin=str(url.origin()),
                idle=deque(),
            )
        return known

    async def reach(
        self, address: Address, limits: aiohttp.ClientTimeout, *, fresh: bool = False
    ) -> EngineConnection:
        """Return a connection that was kept; without one, or for a `fresh` one, it is opened.

        Raises:
            OSError: it could not be; TimeoutError where that took too long.
        """
        reached = None if fresh else self._take(address.idle)
        if reached is None:
            reached = EngineConnection(
                self._event_loop, self._max_head_bytes, self._keep, self._turns, address.idle
            )
            async with asyncio.timeout(limits.sock_connect):
                await self._open(address, reached)
            self._opened.add(reached)
        return reached

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close all connections, those that are in use, too."""
        if self._closing_old is not None:
            self._closing_old.cancel()
        for connection in list(self._opened):
            connection.close()
        for address in self._addresses.values():
            address.idle.clear()
        await super().close(abort_ssl=abort_ssl)

    async def _open(self, address: Address, connection: EngineConnection) -> None:
        """Open a connection: to the address of the name that answers first (RFC 8305)."""
        url, found = address.url, await self._resolve(address)
        line = await aiohappyeyeballs.start_connection(
            found, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=self._event_loop
        )
        is_tls = url.scheme == "https"
        await self._event_loop.create_connection(
            lambda: connection,
            sock=line,
            ssl=_tls() if is_tls else None,
            server_hostname=(url.host or "").rstrip(".") if is_tls else None,
        )

    async def _resolve(self, address: Address) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        """Return the addresses that a name stands for; they are asked for again at times."""
        now_s = self._event_loop.time()
        asked_s, known = self._resolved.get(address.origin, (0.0, ()))
        if known and now_s - asked_s < RESOLVED_S:
            return known
        url = address.url
        try:
            found = await self._event_loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError("that is no name of a host") from error
        self._resolved[address.origin] = (now_s, found)
        return found

    def _take(self, idle: "deque[EngineConnection]") -> EngineConnection | None:
        oldest_s = self._event_loop.time() - self._keep_s
        while idle:
            kept = idle.popleft()
            if kept.rested_at_s >= oldest_s and kept.is_silent():
                kept.was_idle = True
                return kept
            kept.close()
        return None

    def _keep(self, connection: "EngineConnection") -> None:
        if self.closed or connection.should_close:
            connection.close()
            return
        connection.rested_at_s = self._event_loop.time()
        connection.idle.append(connection)
        if self._closing_old is None:
            self._closing_old = self._event_loop.call_later(self._keep_s, self._close_old)

    def _close_old(self) -> None:
        """Close what nobody took in time; look again when the next one has rested so long."""
        self._closing_old = None
        now_s = self._event_loop.time()
        due_s = []
        for address in self._addresses.values():
            idle = address.idle
            while idle and idle[0].rested_at_s + self._keep_s <= now_s:
                idle.popleft().close()
            if idle:
                due_s.append(idle[0].rested_at_s + self._keep_s)
        if due_s:
            self._closing_old = self._event_loop.call_at(min(due_s), self._close_old)


@cache
def _tls() -> ssl.SSLContext:
    """Return what an engine's certificate is held against; reading the system's takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
