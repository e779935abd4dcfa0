"""Requests that were left: remembered, and seen in the engine's slots when others wait for them."""

from typing import Any

import pytest

from slowtok.detectors.case.case import Phases
from slowtok.proxy.engines.counters.slots import BusySlots, WorkingSlot
from slowtok.proxy.observe.abandoned import MAX_AGE_S, AbandonedLog
from slowtok.proxy.observe.concurrency import Look, of_slots
from slowtok.proxy.observe.occupancy import Occupancy
from slowtok.proxy.relay.exchange import Exchange, SlotProgress
from slowtok.proxy.stream.apis import find_api

API = find_api("POST", "/v1/chat/completions")
SENT_S = 100.0
BEGUN = Phases(source="stream", total_s=9.0, prefill_from_at_s=SENT_S + 4.0)


def exchange(name: str, **known: Any) -> Exchange:
    """A request at engine "a", sent at `SENT_S` unless told otherwise."""
    made = Exchange(
        request_id=name,
        method="POST",
        path="/v1/chat/completions",
        started_unix_s=0.0,
        accepted_at_s=SENT_S,
        api=API,
        engine_name="a",
        sent_at_s=SENT_S,
    )
    for field, value in known.items():
        setattr(made, field, value)
    return made


def left(*, task: int | None = None, **known: Any) -> Exchange:
    """A request whose client left at 99."""
    slot = None
    if task is not None:
        working = WorkingSlot(task, 10, 10, 1, None)
        slot = SlotProgress(slot=working, begin_s=91.0, read_at_s=92.0)
    return exchange("gone", **{"sent_at_s": 90.0, "ended": "client-gone", "slot": slot, **known})


MINE = exchange("mine", last_byte_at_s=SENT_S + 9.0)


def busy(at_s: float, *tasks: int) -> BusySlots:
    """A look at one slot and its tasks, which answer."""
    return BusySlots(at_s, len(tasks), 1, frozenset(), frozenset(), frozenset(tasks))


def nothing(_since_s: float) -> tuple[BusySlots, ...]:
    return ()


def met_by(gone: Exchange, tasks: list[BusySlots], met: tuple[Occupancy, ...] = ()) -> Any:
    log = AbandonedLog()
    log.note(gone, 99.0)
    looks = of_slots([look for look in tasks if look.at_s >= SENT_S])
    return log.of(MINE, BEGUN, met, looks, lambda since_s: [t for t in tasks if t.at_s >= since_s])


def test_a_task_that_was_the_leavers_is_still_there() -> None:
    found = met_by(left(task=7), [busy(101.0, 7), busy(103.0, 7), busy(105.0, 8)])

    assert (found.count, found.request_id, found.left_s) == (1, "gone", 1.0)
    assert found.seen_s == 3.0


def test_more_at_work_than_there_are_requests() -> None:
    looks = [busy(101.0, 7), busy(102.0, 7)]
    beside = Occupancy(sent_s=95.0, first_s=96.0, end_s=105.0)

    assert met_by(left(), looks).seen_s == 2.0
    assert met_by(left(), looks, (beside,)).seen_s == 0.0


def test_an_engine_that_stopped_shows_it() -> None:
    assert met_by(left(task=7), [busy(105.0, 8)]).seen_s == 0.0
    assert met_by(left(task=7), []).seen_s is None
    assert met_by(left(task=7), [busy(99.5)]) is None, "it was idle in between"


@pytest.mark.parametrize(
    "gone",
    [
        left(ended="stop"),
        left(last_byte_at_s=98.0),
        left(sent_at_s=None),
        left(api=None),
        left(engine_name="b"),
    ],
    ids=["an end", "all of it was there", "never sent", "no generation", "another engine"],
)
def test_who_did_not_leave_an_engine_at_work(gone: Exchange) -> None:
    assert met_by(gone, [busy(101.0, 7)]) is None


def test_who_left_long_ago_is_forgotten() -> None:
    log = AbandonedLog()
    log.note(left(), SENT_S - MAX_AGE_S - 1)

    assert log.of(MINE, BEGUN, (), [Look(101.0, 1)], nothing) is None
    assert log.of(exchange("never", sent_at_s=None), BEGUN, (), (), nothing) is None
