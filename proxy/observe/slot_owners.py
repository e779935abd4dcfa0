"""Finds the slot of a llama-server that works for a request, and so how far the request is.

A slot names its task by a number that no reply carries. So a slot is taken for a request's only
where nothing else is possible: one request waits for its first token, one slot that was not there
before it reads a prompt. Then its number is known, and stays known. Pure: looks and times come in.

Doubt that remains: on an engine that others use past slowtok, a prompt of theirs that began in the
same half second may be taken for ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slowtok.proxy.engines.counters.slots import SlotsLook, WorkingSlot
from slowtok.proxy.relay.exchange import Exchange, Queued, SlotProgress


class SlotOwners:
    """Remembers whose the slots of one engine are, from look to look."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}  # request ids by task
        self._since_s: dict[int, float] = {}  # when each task was first seen
        self._queued_to_s: dict[str, float] = {}  # by request: when it was last seen to have none

    def note(self, look: SlotsLook, asked: Sequence[Exchange], at_s: float) -> None:
        """Tell each of the requests `asked` of the engine how far its slot is, as of `at_s`."""
        working = {slot.task: slot for slot in look.working or ()}
        self._since_s = {task: self._since_s.get(task, at_s) for task in working}
        self._owners = {t: owner for t, owner in self._owners.items() if t in working}
        self._match(list(working.values()), asked)
        tasks = {owner: task for task, owner in self._owners.items()}
        unowned = self._unowned(working.values())
        is_full = look.working is not None and look.busy >= look.slots
        for exchange in asked:
            task = tasks.get(exchange.request_id)
            if task is not None:
                exchange.slot = self._told(exchange, working[task], at_s)
            elif is_full and _has_no_token(exchange) and not _may_be_its(unowned, exchange):
                exchange.slot = Queued(slots=look.slots)
                self._queued_to_s[exchange.request_id] = at_s
            else:
                exchange.slot = None
        here = {exchange.request_id for exchange in asked}
        self._queued_to_s = {id_: at for id_, at in self._queued_to_s.items() if id_ in here}

    def _match(self, working: Sequence[WorkingSlot], asked: Sequence[Exchange]) -> None:
        owned = set(self._owners.values())
        waiting = [e for e in asked if e.request_id not in owned and _has_no_token(e)]
        free = self._unowned(working)
        reading = [slot for slot in free if not slot.decoded_tokens]
        if len(asked) == len(working) == len(free) == 1 and not asked[0].stream:
            reading = free  # a whole reply that is alone may be at its answer already
        if len(waiting) == len(reading) == 1 and self._is_later(reading[0], waiting[0]):
            self._owners[reading[0].task] = waiting[0].request_id

    def _unowned(self, working: Iterable[WorkingSlot]) -> list[WorkingSlot]:
        return [slot for slot in working if slot.task not in self._owners]

    def _is_later(self, slot: WorkingSlot, exchange: Exchange) -> bool:
        return exchange.sent_at_s is not None and self._since_s[slot.task] >= exchange.sent_at_s

    def _told(self, exchange: Exchange, slot: WorkingSlot, at_s: float) -> SlotProgress:
        before = exchange.slot
        if isinstance(before, SlotProgress) and before.slot.task == slot.task:
            return _next(before, slot, at_s)
        queued_to_s = self._queued_to_s.get(exchange.request_id)
        known = (exchange.headers_at_s, queued_to_s, exchange.sent_at_s, at_s)
        begin_s = next(begin for begin in known if begin is not None)
        nothing = slot._replace(computed_tokens=0, decoded_tokens=0)
        return _next(SlotProgress(slot=nothing, begin_s=begin_s, read_at_s=begin_s), slot, at_s)


def _has_no_token(exchange: Exchange) -> bool:
    """Return True if nothing of its answer has come yet, as with all that are not streamed."""
    if exchange.sent_at_s is None:
        return False
    return not exchange.stream or exchange.meter is None or exchange.meter.first_at_s is None


def _may_be_its(unowned: Iterable[WorkingSlot], exchange: Exchange) -> bool:
    """Return True if a slot may work for it: of a stream an answer would have been seen."""
    return any(not slot.decoded_tokens or not exchange.stream for slot in unowned)


def _next(before: SlotProgress, slot: WorkingSlot, at_s: float) -> SlotProgress:
    """Return what is known after a look."""
    found = replace(before, slot=slot)
    if slot.computed_tokens > before.slot.computed_tokens:
        found = replace(found, read_at_s=at_s, steps=before.steps + 1)
    if slot.decoded_tokens > before.slot.decoded_tokens:
        found = replace(found, decoded_at_s=at_s)
        if found.first_at_s is None:
            found = replace(found, first_at_s=at_s, first_tokens=slot.decoded_tokens)
    return found
