"""How many of a llama-server's slots are at work: shows also what does not come through the proxy.

`/slots` wakes a sleeping model and keeps one awake, so it is asked only while a request of ours is
at the engine anyway.
"""

from collections import deque
from typing import NamedTuple

import aiohttp

from slowtok.proxy.servers.reply import Reply, get

POLL_S = 0.5  # four looks in the shortest decode that is judged
KEEP = 1200  # ten minutes


class BusySlots(NamedTuple):
    """How many slots worked at `at_s`."""

    at_s: float
    busy: int


class SlotLog:
    """The looks of the last minutes at one engine's slots."""

    def __init__(self) -> None:
        self._looks: deque[BusySlots] = deque(maxlen=KEEP)

    def note(self, at_s: float, busy: int) -> None:
        """Keep one look."""
        self._looks.append(BusySlots(at_s, busy))

    def window(self, from_s: float, to_s: float) -> tuple[BusySlots, ...]:
        """Return the looks inside a window, oldest first."""
        return tuple(look for look in self._looks if from_s <= look.at_s <= to_s)


async def count_busy(session: aiohttp.ClientSession, url: str) -> int | None:
    """Ask a llama-server how many slots work; None where it does not tell."""
    return read_busy(await get(session, url, ""))


def read_busy(reply: Reply | None) -> int | None:
    """Count the slots that work in a reply of `/slots`; None where it is no such reply."""
    slots = None if reply is None or reply.status != 200 else reply.json
    if not isinstance(slots, list):
        return None
    flags = [slot.get("is_processing") for slot in slots if isinstance(slot, dict)]
    return flags.count(True) if all(isinstance(flag, bool) for flag in flags) else None
