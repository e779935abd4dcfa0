"""Abandoned requests: their clients disconnected, but did the engine go on computing?

slowtok closes its own connection to the engine at once. An engine that does not check for that, or
only between two batches, goes on, and the next request waits for a reply that nobody reads. Its
slots reveal it: a task of an abandoned request that is still there, or more tasks at work than
there are requests.
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


class _AbandonedRequest(NamedTuple):
    """One abandoned request: when and at which engine, and its task there if known."""

    at_s: float
    request_id: str
    engine_name: str | None
    task: int | None


class AbandonedLog:
    """Keeps the latest abandoned requests, and finds those that affected a later one."""

    def __init__(self) -> None:
        self._requests: deque[_AbandonedRequest] = deque(maxlen=KEEP)

    def note(self, exchange: Exchange, at_s: float) -> None:
        """Keep a finished request if its client disconnected before the end of the reply."""
        if exchange.api is None or exchange.sent_at_s is None:
            return
        if exchange.ended != "client-gone" or exchange.last_byte_at_s is not None:
            return
        task = exchange.slot.slot.task if isinstance(exchange.slot, SlotProgress) else None
        self._requests.append(
            _AbandonedRequest(at_s, exchange.request_id, exchange.engine_name, task)
        )

    def of(
        self,
        exchange: Exchange,
        phases: Phases,
        others: Sequence[Occupancy],
        looks: Sequence[Look],
        looks_since: Callable[[float], Sequence[BusySlots]],
    ) -> Abandoned | None:
        """Return the abandoned requests that a request may have waited for; None if there are none.

        Args:
            exchange: the request.
            phases: its phases, for the begin of prefill and of decode.
            others: the proxy's other requests at its engine.
            looks: looks at the engine's slots or gauges during the request.
            looks_since: returns the looks at the slots' tasks from a moment to the request's end.
        """
        sent_s, until_s = exchange.sent_at_s, exchange.last_byte_at_s or exchange.ended_at_s
        if sent_s is None or until_s is None or not self._requests:
            return None
        since_s = sent_s - MAX_AGE_S
        abandoned = [
            request
            for request in self._requests
            if request.engine_name == exchange.engine_name and since_s <= request.at_s < until_s
        ]
        tasks = looks_since(abandoned[0].at_s) if abandoned else ()
        idle_at_s = next((look.at_s for look in reversed(tasks) if look.busy == 0), since_s)
        abandoned = [request for request in abandoned if request.at_s >= idle_at_s]
        if not abandoned:
            return None
        last = abandoned[-1]
        return Abandoned(
            count=len(abandoned),
            request_id=last.request_id,
            left_s=max(sent_s - last.at_s, 0.0),
            seen_s=_seen_s(sent_s, abandoned, phases, others, looks, tasks),
        )


def _seen_s(
    sent_s: float,
    abandoned: Sequence[_AbandonedRequest],
    phases: Phases,
    others: Sequence[Occupancy],
    looks: Sequence[Look],
    tasks: Sequence[BusySlots],
) -> float | None:
    """Return until how long after `sent_s` the engine worked for them; None without looks."""
    if not looks:
        return None
    seen_s = [0.0]
    known = {request.task for request in abandoned if request.task is not None}
    for slots in tasks:
        task_sets = (slots.unstarted, slots.reading, slots.answering)
        tasks_at_work = frozenset[int]().union(
            *(tasks_in_set for tasks_in_set in task_sets if tasks_in_set)
        )
        seen_s += [slots.at_s - sent_s for task in known if task in tasks_at_work]
    first_left_s = min(request.at_s for request in abandoned)
    for look in looks:
        if look.at_s > first_left_s and look.working > _expected_working(look, phases, others):
            seen_s.append(look.at_s - sent_s)
    return max(seen_s)


def _expected_working(look: Look, phases: Phases, others: Sequence[Occupancy]) -> int:
    """Return how many of the proxy's own requests may have been at work at a look."""
    begun_s = phases.prefill_from_at_s
    own = 1 if begun_s is None or look.at_s >= begun_s or look.unstarted else 0
    return own + sum(other.sent_s <= look.at_s < other.end_s for other in others)
