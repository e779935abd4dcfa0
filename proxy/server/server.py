"""The server as the commands see it, from the first client to the orderly end.

At shutdown, requests in flight may finish; those that do not finish in time are cut off visibly.
slowtok waits for this itself, because aiohttp's own shutdown discards what still arrives of a
request's body and drops bytes that a client has not read yet.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from slowtok.proxy.relay.relay import Relay
from slowtok.proxy.server.connection_limit import ConnectionLimiter
from slowtok.proxy.server.listener import accept

POLL_S = 0.02  # aiohttp tells nobody when the last byte of a reply has gone out


class Server(Protocol):
    """A server of clients, from `open` to `close`; `drain` waits for the requests in flight."""

    @property
    def refused(self) -> int:
        """How many connections were refused because of the connection limit."""
        ...

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """Lag of the event loop that relays, of several the largest; empty if not known."""
        ...

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes of bodies, replies and slow readers in memory, over all relaying processes."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """Return an entry per worker process for /slowtok/status; empty for a single process."""
        ...

    async def open(self) -> None:
        """Start to accept clients."""
        ...

    async def close(self) -> int:
        """Stop accepting clients; another slowtok may take over the port.

        Returns how many requests are in flight, or still wait for their client to read.
        """
        ...

    async def drain(self, at_once: asyncio.Event) -> int:
        """Wait until all replies are delivered or time is up; return how many were cut off."""
        ...


class SingleProcessServer:
    """The `Server` of a proxy in one process, without workers."""

    def __init__(
        self,
        relay: Relay,
        server: web.Server,
        listener: socket.socket,
        limiter: ConnectionLimiter,
        grace_s: float,
    ) -> None:
        self._relay, self._server = relay, server
        self._listener, self._limiter = listener, limiter
        self._grace_s = grace_s
        self._accepting: list[asyncio.Server] = []

    @property
    def refused(self) -> int:
        """How many connections were refused because of the connection limit."""
        return self._limiter.refused

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """Empty: `Proxy` measures the lag of its own process."""
        return {}

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that the relay's memory budget counts."""
        return self._relay.memory_budget.summary()

    def workers(self) -> list[dict[str, Any]]:
        """Return no entry: there are no worker processes."""
        return []

    async def open(self) -> None:
        """Start to accept clients."""
        self._accepting = await accept(self._listener, self._limiter)

    async def close(self) -> int:
        """Stop accepting clients; return how many requests are in flight."""
        for server in self._accepting:
            server.close()
        return under_way(self._relay, self._server)

    async def drain(self, at_once: asyncio.Event) -> int:
        """Wait for the requests in flight, see `drain`."""
        return await drain(self._relay, self._server, self._grace_s, at_once)


class StopRequest:
    """A stop requested by signals: the first asks to finish, a second to stop at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """Record one signal."""
        (self.at_once if self.asked.is_set() else self.asked).set()

    def ask_at_once(self) -> None:
        """Ask to stop without waiting for anything."""
        self.asked.set()
        self.at_once.set()


async def drain(relay: Relay, server: web.Server, grace_s: float, at_once: asyncio.Event) -> int:
    """Wait until every reply is delivered; return how many were cut off.

    Replies are cut off after `grace_s`, or as soon as `at_once` is set.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while under_way(relay, server) and not at_once.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(at_once.wait(), POLL_S)
    return relay.cut_off()


def under_way(relay: Relay, server: web.Server) -> int:
    """Return how many requests are in flight, or have reply bytes that no client has read."""
    transports = [connection.transport for connection in server.connections]
    waiting = [t for t in transports if t is not None and t.get_write_buffer_size()]
    return max(relay.in_flight, len(waiting))
