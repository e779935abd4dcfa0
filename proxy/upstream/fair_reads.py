"""Turns among connections that bring more than can be passed on at once.

Whoever brings a token is passed on in the callback that it came in. What is larger is cut into
slices, and only so many of them go on in one turn of the loop, whoever they are from: a stream that
brings a token meanwhile waits for those and no longer.
"""

import asyncio
from collections import deque
from typing import Protocol

# About 60 tokens, which take half a millisecond to pass on and look at (measured); a loop's read
# brings up to 256 KiB, and it reads on as long as there is more.
SLICE_BYTES = 16 * 1024
SLICES_PER_TURN = 2


class WaitingRead(Protocol):
    """Who has something to go on with."""

    def pass_next_slice(self) -> None:
        """Take one slice, and ask for the next turn if more is left."""
        ...


class FairReads:
    """Gives turns, in the order in which they were asked for."""

    __slots__ = ("_handle", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[WaitingRead] = deque()
        self._handle: asyncio.Handle | None = None

    @property
    def is_busy(self) -> bool:
        """Return True if a connection waits for its turn: one that comes now waits, too."""
        return bool(self._waiting)

    def ask(self, who: WaitingRead) -> None:
        """Let `pass_next_slice` be called when it is this one's turn."""
        self._waiting.append(who)
        if self._handle is None:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        for _ in range(min(SLICES_PER_TURN, len(self._waiting))):
            self._waiting.popleft().pass_next_slice()
        if self._waiting and self._handle is None:
            self._handle = self._loop.call_soon(self._turn)
