"""Back-pressure: bytes that a client has not taken yet, in the transport and in the kernel.

The kernel takes a megabyte or more in a client's stead, so the transport's own buffer alone would
show a slow reader only when it is far behind. Linux tells the bytes that it could not send yet
because the client's window is full or the network is; elsewhere the transport's buffer has to do.
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
FREE_BYTES = 64 * 1024  # of it, which each client has: half a read of its stream
POLL_S = 0.02  # while a client is behind; one that keeps up is never polled
GLANCE_S = 0.1  # asking the kernel after each token would cost half as much as to relay it

Backlog = Callable[[], int]


class BacklogWatch:
    """Adds up the time in which a client had not taken what was there for it.

    `note` or `glance` is called after each write. Only while something waits does a timer look
    again, so that a client which catches up in a pause of the engine is not charged with the pause.
    """

    def __init__(self, waiting: Backlog, caught_up: Callable[[], None] = lambda: None) -> None:
        self.waiting = waiting
        self._caught_up = caught_up
        self.blocked_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._glanced_at_s = -math.inf

    def glance(self, now_s: float) -> None:
        """Look, if the last glance was `GLANCE_S` ago."""
        if now_s - self._glanced_at_s >= GLANCE_S:
            self._glanced_at_s = now_s
            self.note()

    def note(self) -> None:
        """Look after a write; begin to watch where the client is behind."""
        if self._since_s is None and self.waiting():
            self._since_s = self._loop.time()
            self._timer = self._loop.call_later(POLL_S, self._look)

    def close(self) -> None:
        """Stop watching; what is open counts until now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._charge()

    def _look(self) -> None:
        self._timer = None
        if self.waiting():
            self._timer = self._loop.call_later(POLL_S, self._look)
        else:
            self._charge()
            self._caught_up()

    def _charge(self) -> None:
        if self._since_s is not None:
            self.blocked_s += self._loop.time() - self._since_s
            self._since_s = None


class BacklogRoom:
    """Room for what waits for one client: some for each, more while `held` has room for it.

    Where there is none, the engine is read no faster than the client reads.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, held: MemoryBudget, exchange: Exchange
    ) -> None:
        transport.set_write_buffer_limits(high=CLIENT_BACKLOG_BYTES)
        self._transport = transport
        self._held, self._exchange = held, exchange
        self._taken_bytes = 0

    def fits(self) -> bool:
        """Return True if more may be written, taking room for what waits already."""
        waiting_bytes = self._transport.get_write_buffer_size()
        return waiting_bytes <= FREE_BYTES + self._taken_bytes or self._take(waiting_bytes)

    async def wait(self) -> None:
        """Wait until more may be written, or nobody is there to read it."""
        while not self.fits() and not self._transport.is_closing():  # noqa: ASYNC110 - see below
            await asyncio.sleep(POLL_S)

    def give_back(self) -> None:
        """Take no more room than is free for each."""
        self._held.give_back(self._exchange, self._taken_bytes)
        self._taken_bytes = 0

    def _take(self, waiting_bytes: int) -> bool:
        """Take room for twice as much as there is, so as not to ask for each token."""
        wanted_bytes = min(2 * waiting_bytes, CLIENT_BACKLOG_BYTES) - self._taken_bytes
        if wanted_bytes <= 0 or not self._held.take_for_reader(self._exchange, wanted_bytes):
            return False
        self._taken_bytes += wanted_bytes
        return True


def backlog_of(transport: asyncio.WriteTransport) -> Backlog:
    """Return a function that tells how many bytes wait for the client; it never raises."""
    waiting = transport.get_write_buffer_size
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return waiting
    descriptor = sock.fileno()

    def unsent() -> int:
        if transport.is_closing():
            return 0
        try:
            answer = ioctl(descriptor, SIOCOUTQNSD, _INT.pack(0))
        except OSError:
            return waiting()
        return waiting() + int(_INT.unpack(answer)[0])

    return unsent


async def delivered(waiting: Backlog) -> None:
    """Wait until the client has taken everything; returns at once for one that keeps up."""
    while waiting():  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(POLL_S)
