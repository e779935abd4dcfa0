"""Back-pressure: how many bytes a client has not read yet, in the transport and in the kernel.

The kernel buffers a megabyte or more, so the transport's own buffer alone would reveal a slow
reader only when it is far behind. Linux reports the bytes in its send queue that it could not send
because the client's window or the network is full; elsewhere only the transport's buffer counts.
"""

import asyncio
import math
import struct
import sys
from collections.abc import Callable

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget

if sys.platform == "linux":
    from fcntl import ioctl

SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the output queue that were not sent yet
_INT = struct.Struct("i")

CLIENT_BACKLOG_BYTES = 4 * 1024 * 1024  # about 15,000 tokens; then the engine is slowed, too
FREE_BYTES = 64 * 1024  # of it without a reservation: half a read of the stream
POLL_S = 0.02  # while a client is behind; one that keeps up is never polled
GLANCE_S = 0.1  # asking the kernel after each token would cost half as much as to relay it

Backlog = Callable[[], int]


class BacklogWatch:
    """Measures for how long a client had not read what was sent to it (`blocked_s`).

    `note` or `glance` is called after each write. A timer polls only while bytes are waiting, so
    that a client that catches up during a pause of the engine is not charged with the pause.
    """

    def __init__(
        self, backlog_bytes: Backlog, caught_up: Callable[[], None] = lambda: None
    ) -> None:
        self.backlog_bytes = backlog_bytes
        self._caught_up = caught_up
        self.blocked_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._glanced_at_s = -math.inf

    def glance(self, now_s: float) -> None:
        """Check the backlog after a write, at most once in `GLANCE_S`."""
        if now_s - self._glanced_at_s >= GLANCE_S:
            self._glanced_at_s = now_s
            self.note()

    def note(self) -> None:
        """Check the backlog after a write, and start to poll if the client is behind."""
        if self._since_s is None and self.backlog_bytes():
            self._since_s = self._loop.time()
            self._timer = self._loop.call_later(POLL_S, self._look)

    def close(self) -> None:
        """Stop polling; time that the client is behind counts until now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._charge()

    def _look(self) -> None:
        self._timer = None
        if self.backlog_bytes():
            self._timer = self._loop.call_later(POLL_S, self._look)
        else:
            self._charge()
            self._caught_up()

    def _charge(self) -> None:
        if self._since_s is not None:
            self.blocked_s += self._loop.time() - self._since_s
            self._since_s = None


class BacklogRoom:
    """Write-buffer room for one client: `FREE_BYTES`, and more as the memory budget allows.

    Without room, the engine is read no faster than the client reads.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, memory_budget: MemoryBudget, exchange: Exchange
    ) -> None:
        transport.set_write_buffer_limits(high=CLIENT_BACKLOG_BYTES)
        self._transport = transport
        self._memory_budget, self._exchange = memory_budget, exchange
        self._reserved_bytes = 0

    def fits(self) -> bool:
        """Return True if more may be written, after reserving memory for what already waits."""
        waiting_bytes = self._transport.get_write_buffer_size()
        return waiting_bytes <= FREE_BYTES + self._reserved_bytes or self._reserve(waiting_bytes)

    async def wait(self) -> None:
        """Wait until more may be written, or until the client has disconnected."""
        while not self.fits() and not self._transport.is_closing():  # noqa: ASYNC110 - see below
            await asyncio.sleep(POLL_S)

    def release(self) -> None:
        """Return the reserved memory; only `FREE_BYTES` are left."""
        self._memory_budget.release(self._exchange, self._reserved_bytes)
        self._reserved_bytes = 0

    def _reserve(self, waiting_bytes: int) -> bool:
        """Reserve twice what waits, so that the budget need not be asked for every token."""
        wanted_bytes = min(2 * waiting_bytes, CLIENT_BACKLOG_BYTES) - self._reserved_bytes
        if wanted_bytes <= 0 or not self._memory_budget.reserve_for_reader(
            self._exchange, wanted_bytes
        ):
            return False
        self._reserved_bytes += wanted_bytes
        return True


def backlog_of(transport: asyncio.WriteTransport) -> Backlog:
    """Return a function that returns how many bytes wait for the client; it never raises."""
    buffered_bytes = transport.get_write_buffer_size
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return buffered_bytes
    descriptor = sock.fileno()

    def unsent() -> int:
        if transport.is_closing():
            return 0
        try:
            unsent_bytes = ioctl(descriptor, SIOCOUTQNSD, _INT.pack(0))
        except OSError:
            return buffered_bytes()
        return buffered_bytes() + int(_INT.unpack(unsent_bytes)[0])

    return unsent


async def delivered(backlog_bytes: Backlog) -> None:
    """Wait until the client has read everything; returns at once if it has kept up."""
    while backlog_bytes():  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(POLL_S)
