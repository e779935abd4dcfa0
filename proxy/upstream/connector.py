"""The pool of connections to engines: opens them and keeps idle ones for the next request."""

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
    """An engine's address: what is the same for all requests to it.

    `path` is the prefix of each target; `origin` is for messages. `idle` are the idle connections,
    the one that has been idle longest first.
    """

    url: URL
    host: str
    path: str
    origin: str
    idle: "deque[EngineConnection]"


class EngineConnector(aiohttp.TCPConnector):
    """Connection pool of relayed requests, and aiohttp's connector for the probes of engines.

    aiohttp's own pool serves only the session that asks engines about their state. Relayed requests
    have a separate pool that keeps each connection for `keep_s`: releasing and acquiring one in
    aiohttp costs more than writing the request, and its bookkeeping takes more memory than a
    stream. A connection that received bytes while idle is closed, because one client could get the
    reply meant for another.
    """

    def __init__(self, max_head_bytes: int, keep_s: float, **options: Any) -> None:
        super().__init__(keepalive_timeout=keep_s, **options)
        self._event_loop = asyncio.get_running_loop()
        self._fair_reads = FairReads(self._event_loop)
        self._max_head_bytes = max_head_bytes
        self._keep_s = keep_s
        self._addresses: dict[str, Address] = {}  # by URL, of which the settings have a few
        self._opened = WeakSet[EngineConnection]()
        self._resolved: dict[str, tuple[float, Sequence[aiohappyeyeballs.AddrInfoType]]] = {}
        self._expiry_timer: asyncio.TimerHandle | None = None

    def address(self, base_url: str) -> Address:
        """Return the address of the engine at `base_url`, cached."""
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

    async def get_connection(
        self, address: Address, limits: aiohttp.ClientTimeout, *, fresh: bool = False
    ) -> EngineConnection:
        """Return an idle connection; open one if there is none, or if a `fresh` one is wanted.

        Raises:
            OSError: the connection could not be opened; TimeoutError if that took too long.
        """
        connection = None if fresh else self._pop_idle(address.idle)
        if connection is None:
            connection = EngineConnection(
                self._event_loop,
                self._max_head_bytes,
                self._keep_idle,
                self._fair_reads,
                address.idle,
            )
            async with asyncio.timeout(limits.sock_connect):
                await self._open(address, connection)
            self._opened.add(connection)
        return connection

    async def close(self, *, abort_ssl: bool = False) -> None:
        """Close all connections, including those in use."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        for connection in list(self._opened):
            connection.close()
        for address in self._addresses.values():
            address.idle.clear()
        await super().close(abort_ssl=abort_ssl)

    async def _open(self, address: Address, connection: EngineConnection) -> None:
        """Open a connection to whichever address of the host name answers first (RFC 8305)."""
        url, addresses = address.url, await self._resolve(address)
        sock = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=self._event_loop
        )
        is_tls = url.scheme == "https"
        await self._event_loop.create_connection(
            lambda: connection,
            sock=sock,
            ssl=_tls_context() if is_tls else None,
            server_hostname=(url.host or "").rstrip(".") if is_tls else None,
        )

    async def _resolve(self, address: Address) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        """Return the addresses of the engine's host name, cached for `RESOLVED_S`."""
        now_s = self._event_loop.time()
        asked_s, known = self._resolved.get(address.origin, (0.0, ()))
        if known and now_s - asked_s < RESOLVED_S:
            return known
        url = address.url
        try:
            addresses = await self._event_loop.getaddrinfo(
                url.host, url.port, type=socket.SOCK_STREAM
            )
        except UnicodeError as error:
            raise OSError("that is no name of a host") from error
        self._resolved[address.origin] = (now_s, addresses)
        return addresses

    def _pop_idle(self, idle: "deque[EngineConnection]") -> EngineConnection | None:
        oldest_s = self._event_loop.time() - self._keep_s
        while idle:
            connection = idle.popleft()
            if connection.idle_since_s >= oldest_s and connection.is_silent():
                connection.was_idle = True
                return connection
            connection.close()
        return None

    def _keep_idle(self, connection: "EngineConnection") -> None:
        if self.closed or connection.should_close:
            connection.close()
            return
        connection.idle_since_s = self._event_loop.time()
        connection.idle.append(connection)
        if self._expiry_timer is None:
            self._expiry_timer = self._event_loop.call_later(self._keep_s, self._close_expired)

    def _close_expired(self) -> None:
        """Close connections that were idle too long, and schedule the next check."""
        self._expiry_timer = None
        now_s = self._event_loop.time()
        due_s = []
        for address in self._addresses.values():
            idle = address.idle
            while idle and idle[0].idle_since_s + self._keep_s <= now_s:
                idle.popleft().close()
            if idle:
                due_s.append(idle[0].idle_since_s + self._keep_s)
        if due_s:
            self._expiry_timer = self._event_loop.call_at(min(due_s), self._close_expired)


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context, cached because reading the system's certificates takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
