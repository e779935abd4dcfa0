"""The serving side as commands see it: this process itself, or its workers."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from aiohttp import web

from slowtok.proxy.relay.relay import Relay
from slowtok.proxy.server.drain import drain, under_way
from slowtok.proxy.server.listener import BACKLOG, ConnectionLimiter


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
        door: ConnectionLimiter,
        grace_s: float,
    ) -> None:
        self._relay, self._server = relay, server
        self._listener, self._door = listener, door
        self._grace_s = grace_s
        self._listening: asyncio.Server | None = None

    @property
    def refused(self) -> int:
        """Connections beyond what can be served."""
        return self._door.refused

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
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._door, sock=self._listener, backlog=BACKLOG)

    async def close(self) -> int:
        """Listen no more."""
        if self._listening is not None:
            self._listening.close()
        return under_way(self._relay, self._server)

    async def drain(self, at_once: asyncio.Event) -> int:
        """See `drain.drain`."""
        return await drain(self._relay, self._server, self._grace_s, at_once)
