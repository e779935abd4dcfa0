"""Requests whose clients left before their end, and whether their engine went on with them.

slowtok closes its own connection to the engine at once. An engine that does not look for that, or
only between two batches, goes on, and whoever comes next waits for nobody. Its slots show it: a
task that was the leaver's and is still there, or more tasks than there are requests.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slowtok.detectors.case.case import Abandoned, Phases
from slowtok.proxy.engines.counters.slots import BusySlots
from slowtok.proxy.observe.concurrency import Look
from slowtok.proxy.observe.occupancy import Occupancy
from slowtok.proxy.relay.exchange import Exchange, SlotProgress

KEEP = 64
MAX_AGE_S = 600.0  # an answer of the longest kind; heuristic


class _Left(NamedTuple):
    """One request that was left: when, at which engine, and its task there where it is known."""

    at_s: float
    request_id: str
    engine_name: str | None
    task: int | None


class AbandonedLog:
    """Remembers who left, and says what later requests met of theirs."""

    def __init__(self) -> None:
        self._left: deque[_Left] = deque(maxlen=KEEP)

    def note(self, exchange: Exchange, at_s: float) -> None:
        """Take note of a request that is over, if its client left before it was."""
        if exchange.api is None or exchange.sent_at_s is None:
            return
        if exchange.ended != "client-gone" or exchange.last_byte_at_s is not None:
            return
        task = exchange.slot.slot.task if isinstance(exchange.slot, SlotProgress) else None
        self._left.append(_Left(at_s, exchange.request_id, exchange.engine_name, task))

    def of(
        self,
        mine: Exchange,
        phases: Phases,
        others: Sequence[Occupancy],
        looks: Sequence[Look],
        looks_since: Callable[[float], Sequence[BusySlots]],
    ) -> Abandoned | None:
        """Return what a request met of those that were left before its first token.

        Args:
            mine: that request.
            phases: when its prompt was begun, and its answer.
            others: the other requests of the proxy at its engine.
            looks: those at the engine's slots or gauges while it was there.
            looks_since: returns the looks at the slots' tasks from a moment to its end.
        """
        sent_s, until_s = mine.sent_at_s, mine.last_byte_at_s or mine.ended_at_s
        if sent_s is None or until_s is None or not self._left:
            return None
        since_s = sent_s - MAX_AGE_S
        left = [
            one
            for one in self._left
            if one.engine_name == mine.engine_name and since_s <= one.at_s < until_s
        ]
        tasks = looks_since(left[0].at_s) if left else ()
        idle_at_s = next((look.at_s for look in reversed(tasks) if look.busy == 0), since_s)
        left = [one for one in left if one.at_s >= idle_at_s]
        if not left:
            return None
        last = left[-1]
        return Abandoned(
            count=len(left),
            request_id=last.request_id,
            left_s=max(sent_s - last.at_s, 0.0),
            seen_s=_seen_s(sent_s, left, phases, others, looks, tasks),
        )


def _seen_s(
    sent_s: float,
    left: Sequence[_Left],
    phases: Phases,
    others: Sequence[Occupancy],
    looks: Sequence[Look],
    tasks: Sequence[BusySlots],
) -> float | None:
    """Return until when the engine was seen at work for those who left; None without a look."""
    if not looks:
        return None
    seen = [0.0]
    known = {one.task for one in left if one.task is not None}
    for slots in tasks:
        every = (slots.unstarted, slots.reading, slots.answering)
        there = frozenset[int]().union(*(found for found in every if found))
        seen += [slots.at_s - sent_s for task in known if task in there]
    first_left_s = min(one.at_s for one in left)
    for look in looks:
        if look.at_s > first_left_s and look.working > _expected(look, phases, others):
            seen.append(look.at_s - sent_s)
    return max(seen)


def _expected(look: Look, phases: Phases, others: Sequence[Occupancy]) -> int:
    """Return how many of the proxy's requests may have been at work at a look."""
    begun_s = phases.prefill_from_at_s
    mine = 1 if begun_s is None or look.at_s >= begun_s or look.unstarted else 0
    return mine + sum(other.sent_s <= look.at_s < other.end_s for other in others)
