"""The serving side as commands see it, from the first client to the orderly end.

At the end, what is on its way may finish, and is cut off visibly where it does not. aiohttp's own
way to shut down throws away what still comes of a request's body, and closes what a client has not
taken yet. So slowtok waits first.
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
    """Takes clients in, from `open` to `close`; `drain` waits for what is still on its way."""

    @property
    def refused(self) -> int:
        """Connections that were told to come back later."""
        ...

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """How late the loop is that carries tokens, of several the latest; empty: not told."""
        ...

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that bodies, replies and slow readers hold, in all processes that relay."""
        ...

    def workers(self) -> list[dict[str, Any]]:
        """Return each worker process, for /slowtok/status; none where there is but one process."""
        ...

    async def open(self) -> None:
        """Begin to take clients in."""
        ...

    async def close(self) -> int:
        """Take no more clients in: another slowtok may have the port now.

        Returns how many requests are on their way, or wait for their client to read.
        """
        ...

    async def drain(self, at_once: asyncio.Event) -> int:
        """Wait until all replies have gone out, or time is up; return how many were cut off."""
        ...


class SingleProcessServer:
    """One process that does it all."""

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
        """Connections beyond what can be served."""
        return self._limiter.refused

    @property
    def loop_lag(self) -> Mapping[str, float | None]:
        """The process's own, which its `Proxy` measures."""
        return {}

    @property
    def held(self) -> Mapping[str, int]:
        """What its relay holds."""
        return self._relay.held.summary()

    def workers(self) -> list[dict[str, Any]]:
        """There are none."""
        return []

    async def open(self) -> None:
        """Listen."""
        self._accepting = await accept(self._listener, self._limiter)

    async def close(self) -> int:
        """Listen no more."""
        for server in self._accepting:
            server.close()
        return under_way(self._relay, self._server)

    async def drain(self, at_once: asyncio.Event) -> int:
        """See `drain`."""
        return await drain(self._relay, self._server, self._grace_s, at_once)


class StopRequest:
    """What signals ask for: the first one to finish, a second one to stop at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()

    def ask(self) -> None:
        """Take note of one signal."""
        (self.at_once if self.asked.is_set() else self.asked).set()

    def ask_at_once(self) -> None:
        """Let nothing wait any more."""
        self.asked.set()
        self.at_once.set()


async def drain(relay: Relay, server: web.Server, grace_s: float, at_once: asyncio.Event) -> int:
    """Wait until every reply has gone out; return how many were cut off.

    They are cut off after `grace_s`, or as soon as `at_once` is set.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            while under_way(relay, server) and not at_once.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(at_once.wait(), POLL_S)
    return relay.cut_off()


def under_way(relay: Relay, server: web.Server) -> int:
    """Return how many requests are on their way, or have bytes of a reply wait for their client."""
    transports = [connection.transport for connection in server.connections]
    waiting = [t for t in transports if t is not None and t.get_write_buffer_size()]
    return max(relay.in_flight, len(waiting))
