"""Memory admission: bounds the total bytes of buffered bodies, whole replies and slow readers.

Each relaying process has one budget, used only by its event loop. It counts bytes as received from
clients and engines; objects parsed from them come on top.
"""

import asyncio
from collections.abc import Callable

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.upstream.client import UpstreamError


class MemoryBudget:
    """Counts reserved bytes, never more than `limit_bytes`; `freed` is called on each release."""

    __slots__ = ("_freed", "limit_bytes", "most_bytes", "now_bytes")

    def __init__(self, limit_bytes: int, freed: Callable[[int], None] = lambda _: None) -> None:
        self._freed = freed
        self.limit_bytes = limit_bytes
        self.now_bytes = 0
        self.most_bytes = 0  # so far

    def reserve(self, exchange: Exchange, size_bytes: int) -> bool:
        """Reserve bytes for an exchange; False if the budget is exhausted."""
        now_bytes = self.now_bytes + size_bytes
        if now_bytes > self.limit_bytes:
            return False
        self.now_bytes = now_bytes
        exchange.held_bytes += size_bytes
        self.most_bytes = max(self.most_bytes, now_bytes)
        return True

    def reserve_for_reader(self, exchange: Exchange, size_bytes: int) -> bool:
        """Reserve bytes that wait for a slow reader; False: its engine has to wait instead.

        Slow readers get at most half of the budget, so that requests can still be read.
        """
        if self.now_bytes + size_bytes > self.limit_bytes // 2:
            return False
        return self.reserve(exchange, size_bytes)

    def release(self, exchange: Exchange, size_bytes: int | None = None) -> None:
        """Release `size_bytes` of an exchange, by default all that it has reserved."""
        held_bytes = exchange.held_bytes
        released_bytes = held_bytes if size_bytes is None else min(size_bytes, held_bytes)
        exchange.held_bytes = held_bytes - released_bytes
        self.now_bytes -= released_bytes
        if released_bytes:
            self._freed(released_bytes)

    def release_and_refuse(self, exchange: Exchange, what: str) -> UpstreamError:
        """Release all of an exchange, and return the error that refuses it; `what` was too large.

        This makes room at once for others whose bodies are being read.
        """
        self.release(exchange)
        return UpstreamError(
            status=503,
            ended="overloaded",
            failed=f"memory limit reached: {what} needs more than is left of max_held_bytes"
            f" ({self.limit_bytes / 2**20:,.0f} MiB)",
            check="retry shortly, or raise max_held_bytes",
        )

    def release_when_written(self, exchange: Exchange, _written: asyncio.Task[object]) -> None:
        """Release the rest once a reply was written, or could not be (a callback of its task)."""
        self.release(exchange)

    def summary(self) -> dict[str, int]:
        """Return current and highest use, for /slowtok/status."""
        return {"now_bytes": self.now_bytes, "most_bytes": self.most_bytes}
