"""The end of a proxy: what is on its way may finish, and is cut off visibly where it does not.

aiohttp's own way to shut down throws away what still comes of a request's body, and closes what a
client has not taken yet. So waiting is done here, before it begins.
"""

import asyncio
import contextlib

from aiohttp import web

from slowtok.proxy.relay.relay import Relay

POLL_S = 0.02  # aiohttp tells nobody when the last byte of a reply has gone out


class Stop:
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
