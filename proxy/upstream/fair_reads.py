"""Fair scheduling of large reads among the connections to engines.

A read as small as a token is forwarded in the callback that received it. A larger one is cut into
slices, and all connections together forward only `SLICES_PER_TURN` of them per turn of the event
loop. So a token that arrives meanwhile waits for those slices and no longer.
"""

import asyncio
from collections import deque
from typing import Protocol

# About 60 tokens, which take half a millisecond to pass on and look at (measured); a loop's read
# brings up to 256 KiB, and it reads on as long as there is more.
SLICE_BYTES = 16 * 1024
SLICES_PER_TURN = 2


class WaitingRead(Protocol):
    """A connection with queued bytes."""

    def pass_next_slice(self) -> None:
        """Process one slice, and request another turn if more is left."""
        ...


class FairReads:
    """Scheduler that gives turns in the order in which they were requested."""

    __slots__ = ("_handle", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[WaitingRead] = deque()
        self._handle: asyncio.Handle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether connections wait for their turn; a large read that arrives now waits, too."""
        return bool(self._waiting)

    def request_turn(self, reader: WaitingRead) -> None:
        """Call the reader's `pass_next_slice` when its turn comes."""
        self._waiting.append(reader)
        if self._handle is None:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        for _ in range(min(SLICES_PER_TURN, len(self._waiting))):
            self._waiting.popleft().pass_next_slice()
        if self._waiting and self._handle is None:
            self._handle = self._loop.call_soon(self._turn)
