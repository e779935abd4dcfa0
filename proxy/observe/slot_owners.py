"""Matches llama-server's slots with requests, to know how far each request is. Pure.

A slot shows a task number that no reply carries. So a slot is matched only if there is a single
possibility: one request waits for its first token, and one slot in prefill was not there before the
request. From then on its task number is known.

Remaining doubt: if other programs use the engine without slowtok, one of their prompts that began
in the same half second may be taken for ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slowtok.proxy.engines.counters.slots import SlotsLook, WorkingSlot
from slowtok.proxy.relay.exchange import Exchange, Queued, SlotProgress


class SlotOwners:
    """Tracks which request owns each slot of one engine, from look to look."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}  # request ids by task
        self._since_s: dict[int, float] = {}  # when each task was first seen
        self._queued_to_s: dict[str, float] = {}  # by request: when it was last seen to have none

    def note(self, look: SlotsLook, exchanges: Sequence[Exchange], at_s: float) -> None:
        """Set the slot progress of each of the `exchanges` at the engine, as of `at_s`."""
        working = {slot.task: slot for slot in look.working or ()}
        self._since_s = {task: self._since_s.get(task, at_s) for task in working}
        self._owners = {t: owner for t, owner in self._owners.items() if t in working}
        self._match(list(working.values()), exchanges)
        tasks = {owner: task for task, owner in self._owners.items()}
        unowned = self._unowned(working.values())
        is_full = look.working is not None and look.busy >= look.slots
        for exchange in exchanges:
            task = tasks.get(exchange.request_id)
            if task is not None:
                exchange.slot = self._progress_of(exchange, working[task], at_s)
            elif is_full and _has_no_token(exchange) and not _may_be_its(unowned, exchange):
                exchange.slot = Queued(slots=look.slots)
                self._queued_to_s[exchange.request_id] = at_s
            else:
                exchange.slot = None
        current_ids = {exchange.request_id for exchange in exchanges}
        self._queued_to_s = {id_: at for id_, at in self._queued_to_s.items() if id_ in current_ids}

    def _match(self, working: Sequence[WorkingSlot], exchanges: Sequence[Exchange]) -> None:
        owned = set(self._owners.values())
        waiting = [e for e in exchanges if e.request_id not in owned and _has_no_token(e)]
        free = self._unowned(working)
        reading = [slot for slot in free if not slot.decoded_tokens]
        if len(exchanges) == len(working) == len(free) == 1 and not exchanges[0].stream:
            reading = free  # a whole reply that is alone may be at its answer already
        if len(waiting) == len(reading) == 1 and self._is_later(reading[0], waiting[0]):
            self._owners[reading[0].task] = waiting[0].request_id

    def _unowned(self, working: Iterable[WorkingSlot]) -> list[WorkingSlot]:
        return [slot for slot in working if slot.task not in self._owners]

    def _is_later(self, slot: WorkingSlot, exchange: Exchange) -> bool:
        return exchange.sent_at_s is not None and self._since_s[slot.task] >= exchange.sent_at_s

    def _progress_of(self, exchange: Exchange, slot: WorkingSlot, at_s: float) -> SlotProgress:
        previous = exchange.slot
        if isinstance(previous, SlotProgress) and previous.slot.task == slot.task:
            return _next(previous, slot, at_s)
        queued_to_s = self._queued_to_s.get(exchange.request_id)
        begin_candidates = (exchange.headers_at_s, queued_to_s, exchange.sent_at_s, at_s)
        begin_s = next(begin for begin in begin_candidates if begin is not None)
        untouched_slot = slot._replace(computed_tokens=0, decoded_tokens=0)
        return _next(
            SlotProgress(slot=untouched_slot, begin_s=begin_s, read_at_s=begin_s), slot, at_s
        )


def _has_no_token(exchange: Exchange) -> bool:
    """Return True if no token of the request has arrived; always true of a non-streamed one."""
    if exchange.sent_at_s is None:
        return False
    return not exchange.stream or exchange.meter is None or exchange.meter.first_at_s is None


def _may_be_its(unowned: Iterable[WorkingSlot], exchange: Exchange) -> bool:
    """Return True if one of the slots may work for the request; a stream's answer would show."""
    return any(not slot.decoded_tokens or not exchange.stream for slot in unowned)


def _next(previous: SlotProgress, slot: WorkingSlot, at_s: float) -> SlotProgress:
    """Return the progress after one more look."""
    progress = replace(previous, slot=slot)
    if slot.computed_tokens > previous.slot.computed_tokens:
        progress = replace(progress, read_at_s=at_s, steps=previous.steps + 1)
    if slot.decoded_tokens > previous.slot.decoded_tokens:
        progress = replace(progress, decoded_at_s=at_s)
        if progress.first_at_s is None:
            progress = replace(progress, first_at_s=at_s, first_tokens=slot.decoded_tokens)
    return progress
