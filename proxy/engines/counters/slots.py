"""Reads a llama-server's slots, which also show requests that bypass slowtok.

`/slots` wakes a sleeping model and keeps one awake, so it is requested only while a request of ours
is at the engine anyway. The progress of a slot is reported since b9276; the prompt's length is not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import aiohttp

from slowtok.proxy.engines.probing.reply import ProbeReply, get
from slowtok.proxy.sampling.ring import Ring

POLL_S = 0.5  # four looks in the shortest decode that is judged
KEEP = 1200  # of ten minutes


class BusySlots(NamedTuple):
    """The slots that were busy at `at_s`, and the task numbers in them by progress.

    A task is `unstarted` until its first batch is computed. The sets are None if the slots do not
    report their progress.
    """

    at_s: float
    busy: int
    slots: int | None = None
    unstarted: frozenset[int] | None = None
    reading: frozenset[int] | None = None
    answering: frozenset[int] | None = None


class WorkingSlot(NamedTuple):
    """A slot with its task, which has a unique number.

    `read_tokens` of its prompt are done, including cached ones; they grow with each batch (`-b`,
    2,048 tokens by default). `remaining_tokens` is None if the answer has no limit.
    """

    task: int
    read_tokens: int
    computed_tokens: int
    decoded_tokens: int
    remaining_tokens: int | None


class SlotsLook(NamedTuple):
    """The state of all slots at one moment; `working` is None if they report no progress."""

    slots: int
    busy: int
    working: tuple[WorkingSlot, ...] | None


class SlotLog:
    """The looks at one engine's slots of the last minutes."""

    def __init__(self) -> None:
        self._looks: Ring[BusySlots] = Ring(most=KEEP)

    def note(self, at_s: float, look: SlotsLook) -> None:
        """Keep one look."""
        if look.working is None:
            self._looks.add(BusySlots(at_s, look.busy, look.slots))
            return
        answering = frozenset(slot.task for slot in look.working if slot.decoded_tokens)
        begun = frozenset(slot.task for slot in look.working if slot.computed_tokens)
        every = frozenset(slot.task for slot in look.working)
        unstarted, reading = every - begun - answering, begun - answering
        self._looks.add(BusySlots(at_s, look.busy, look.slots, unstarted, reading, answering))

    def window(self, from_s: float, to_s: float) -> tuple[BusySlots, ...]:
        """Return the looks inside a window, oldest first."""
        return self._looks.window(from_s, to_s)


async def look_at_slots(session: aiohttp.ClientSession, url: str) -> SlotsLook | None:
    """Request a llama-server's slots; None if it does not report them."""
    return read_slots(await get(session, url, ""))


def read_slots(reply: ProbeReply | None) -> SlotsLook | None:
    """Parse a reply of `/slots`; None if it is not one."""
    body = None if reply is None or reply.status != 200 else reply.json
    if not isinstance(body, list):
        return None
    slots = [slot for slot in body if isinstance(slot, dict)]
    if not all(isinstance(slot.get("is_processing"), bool) for slot in slots):
        return None
    busy = [slot for slot in slots if slot["is_processing"]]
    return SlotsLook(len(slots), len(busy), _working(busy))


def _working(busy: Sequence[Mapping[str, Any]]) -> tuple[WorkingSlot, ...] | None:
    read = [_read(slot) for slot in busy]
    known = tuple(slot for slot in read if slot is not None)
    return known if len(known) == len(busy) else None


def _read(slot: Mapping[str, Any]) -> WorkingSlot | None:
    next_token = slot.get("next_token")
    token = next_token[0] if isinstance(next_token, list) and next_token else next_token
    token = token if isinstance(token, dict) else {}
    computed, cached = slot.get("n_prompt_tokens_processed"), slot.get("n_prompt_tokens_cache")
    task, decoded, left = slot.get("id_task"), token.get("n_decoded"), token.get("n_remain")
    if not (_is_count(task) and _is_count(computed) and _is_count(cached) and _is_count(decoded)):
        return None
    remaining = left if _is_count(left) else None
    return WorkingSlot(task, computed + cached, computed, decoded, remaining)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and value >= 0
