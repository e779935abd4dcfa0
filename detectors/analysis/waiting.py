"""The wait before a prompt is read: for a free slot, or for the prompts of others.

No slot was free: `queued`. One was free, and the engine's steps were full of others' prompts:
`batch-shared`. The engine's own looks decide where there are any, because others may not come
through the proxy; else the proxy's own requests do.
"""

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.case.value import frozen_dataclass

MIN_TURN_WAIT_S = 0.2
"""Heuristic: a shorter wait is not felt, and is within the error of the phases."""

MOSTLY = 0.5
"""A wait is for what was so in at least half of it. Heuristic."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One wait of `waited_s` for a turn at the engine.

    `others` were served first, or had the engine meanwhile. `is_full` says that no slot was free:
    None where neither the engine nor the proxy's own requests tell. Others' prompts were read for
    `reading_s` of it. `seen` says that the engine itself showed who was there.
    """

    waited_s: float
    others: int
    is_full: bool | None
    reading_s: float
    seen: bool

    @property
    def is_for_prompts(self) -> bool:
        """Return True if it waited with a slot of its own, for others' prompts."""
        return not self.is_full and self.reading_s >= MOSTLY * self.waited_s


@cached_for_last_case
def wait_of(case: Case) -> Wait | None:
    """Return what a request waited for; None where its wait is not known, or is not felt."""
    waited_s = case.phases.queue_s
    if waited_s is None or waited_s < MIN_TURN_WAIT_S or case.server.slept:
        return None
    at_engine, slots = case.neighbours.waiting, case.server.slots
    own = max(case.neighbours.in_flight_at_send, at_engine.served_first)
    if at_engine.full_ratio is not None:
        is_full: bool | None = at_engine.full_ratio >= MOSTLY
    else:
        is_full = True if own >= (1 if slots is None else max(slots, 1)) else None
    return Wait(
        waited_s=waited_s,
        others=max(own, round(at_engine.others_mean or 0.0)),
        is_full=is_full,
        reading_s=max(at_engine.reading_s, (at_engine.others_reading_ratio or 0.0) * waited_s),
        seen=at_engine.looks > 0 or at_engine.others_reading_ratio is not None,
    )


def others_are_seen(case: Case) -> bool:
    """Return True if others would have been seen, also those that do not come through the proxy."""
    activity = case.activity
    alone = activity is not None and activity.alone is True
    return case.neighbours.counted or alone or case.server.slots == 1
