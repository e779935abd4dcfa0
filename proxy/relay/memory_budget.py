"""Admission control: bounds the bytes that bodies, whole replies and slow readers hold together.

Each process that relays has one count, which only its event loop touches. What a client or an
engine sent is counted, by its size on the wire: what is read from it comes on top.
"""

import asyncio
from collections.abc import Callable

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.upstream.client import UpstreamError


class MemoryBudget:
    """Counts what is held; at any time no more than `limit_bytes`. `freed` hears what was freed."""

    __slots__ = ("_freed", "limit_bytes", "most_bytes", "now_bytes")

    def __init__(self, limit_bytes: int, freed: Callable[[int], None] = lambda _: None) -> None:
        self._freed = freed
        self.limit_bytes = limit_bytes
        self.now_bytes = 0
        self.most_bytes = 0  # so far

    def take(self, exchange: Exchange, size_bytes: int) -> bool:
        """Count bytes that an exchange holds from now on; False where there is no room for them."""
        now_bytes = self.now_bytes + size_bytes
        if now_bytes > self.limit_bytes:
            return False
        self.now_bytes = now_bytes
        exchange.held_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, now_bytes)
        return True

    def take_for_reader(self, exchange: Exchange, size_bytes: int) -> bool:
        """Count bytes that wait for a slow reader; False where its engine has to wait instead.

        Half of the room is not for them: slow readers must not keep requests from being read.
        """
        if self.now_bytes + size_bytes > self.limit_bytes // 2:
            return False
        return self.take(exchange, size_bytes)

    def give_back(self, exchange: Exchange, size_bytes: int | None = None) -> None:
        """Count bytes no more: all that the exchange holds, or so many of them."""
        held = exchange.held_bytes
        given = held if size_bytes is None else min(size_bytes, held)
        exchange.held_bytes = held - given
        self.now_bytes -= given
        if given:
            self._freed(given)

    def release_and_refuse(self, exchange: Exchange, what: str) -> UpstreamError:
        """Return the error of an exchange whose `what` is too much; it holds nothing any more.

        So there is room at once for others that are in the middle of their bodies.
        """
        self.give_back(exchange)
        return UpstreamError(
            status=503,
            ended="overloaded",
            failed=f"memory limit reached: {what} needs more than is left of max_held_bytes"
            f" ({self.limit_bytes / 2**20:,.0f} MiB)",
            check="retry shortly, or raise max_held_bytes",
        )

    def release_when_written(self, exchange: Exchange, _written: asyncio.Task[object]) -> None:
        """Give back what is left once a reply was written, or could not be."""
        self.give_back(exchange)

    def summary(self) -> dict[str, int]:
        """Return what is held now, and the most that ever was, for /slowtok/status."""
        return {"now_bytes": self.now_bytes, "most_bytes": self.most_bytes}
