"""Who was at an engine while a request waited and was read, from stays and looks made by hand."""

import pytest

from slowtok.detectors.case.case import Concurrency
from slowtok.proxy.engines.counters.activity import Scrape
from slowtok.proxy.engines.counters.metrics import Counters
from slowtok.proxy.engines.counters.slots import BusySlots
from slowtok.proxy.observe.concurrency import (
    Look,
    of_gauges,
    of_slots,
    queue_bounds,
    slots_bounds,
    while_read,
    while_waiting,
)
from slowtok.proxy.observe.occupancy import Occupancy

WAIT = (10.0, 14.0)  # sent, and its own prompt begun


def slots(*seen: tuple[int, int, int]) -> list[Look]:
    """Looks at four slots, half a second apart: busy, reading, unstarted."""
    return [
        Look(10.5 + 0.5 * i, busy, reading=reading, unstarted=unstarted)
        for i, (busy, reading, unstarted) in enumerate(seen)
    ]


def tasks(at_s: float, unstarted: set[int], reading: set[int], answering: set[int]) -> BusySlots:
    """One look at four slots, with the tasks in each state."""
    kinds = (frozenset(unstarted), frozenset(reading), frozenset(answering))
    return BusySlots(at_s, sum(map(len, kinds)), 4, *kinds)


def gauges(*seen: tuple[int, int], kv: float = 0.3, from_s: float = 10.0) -> list[Look]:
    """Looks at gauges, one a second, the first as the request is sent: running, waiting."""
    return of_gauges(
        Scrape(from_s + i, from_s + i, Counters(running=run, waiting=wait, kv_used_ratio=kv))
        for i, (run, wait) in enumerate(seen)
    )


def full_ratio(looks: list[Look], count: int | None) -> float | None:
    return while_waiting(WAIT, [], looks, count).full_ratio


@pytest.mark.parametrize(
    ("looks", "count", "ratio"),
    [
        pytest.param(slots((4, 0, 0), (4, 1, 0)), 4, 1.0, id="all slots at work on others"),
        pytest.param(slots((3, 0, 0), (3, 0, 0)), 4, 0.0, id="a slot is free"),
        pytest.param(slots((4, 0, 0), (3, 0, 0)), 4, 0.5, id="a slot came free"),
        pytest.param(slots((4, 1, 1)), 4, None, id="one with nothing computed may be its own"),
        pytest.param(slots((4, 0, 0)), None, None, id="not known how many slots there are"),
        pytest.param([Look(11.0, 4)], 4, None, id="slots that do not tell how far they are"),
        pytest.param(gauges((2, 0), (2, 1), (2, 1)), 2, 1.0, id="as many run as may"),
        pytest.param(gauges((1, 0), (1, 1)), None, 1.0, id="nobody is let in: no limit known"),
        pytest.param(gauges((1, 0), (1, 1)), 8, 0.0, id="room, and steps full of others' prompts"),
        pytest.param(gauges((3, 0), (3, 1), kv=0.97), 8, 1.0, id="no room in the KV cache"),
        pytest.param(gauges((0, 0), (0, 1)), 2, 0.0, id="the gauge counts the request itself"),
        pytest.param([], 4, None, id="nobody looked"),
    ],
)
def test_room_at_the_engine(looks: list[Look], count: int | None, ratio: float | None) -> None:
    assert full_ratio(looks, count) == ratio


@pytest.mark.parametrize(
    ("looks", "count", "others", "reading"),
    [
        pytest.param(slots((2, 1, 1), (2, 1, 1)), 4, 1.0, 1.0, id="a hidden prompt is read"),
        pytest.param(slots((2, 0, 1)), 4, 1.0, 0.0, id="a hidden answer"),
        pytest.param(gauges((1, 0), (1, 1), (1, 1)), 8, 1.0, 1.0, id="no room in the steps"),
        pytest.param(gauges((2, 0), (2, 1)), 2, 2.0, 0.0, id="no slot: nothing told of prompts"),
        pytest.param(gauges((0, 0), (0, 1)), 8, 0.0, 0.0, id="the request itself"),
    ],
)
def test_others_by_the_engines_word(
    looks: list[Look], count: int, others: float, reading: float
) -> None:
    at_engine = while_waiting(WAIT, [], looks, count)

    assert (at_engine.others_mean, at_engine.others_reading_ratio) == (others, reading)


@pytest.mark.parametrize(
    ("met", "count"),
    [
        pytest.param([Occupancy(9.0, 9.5, 14.0)], 1, id="there before"),
        pytest.param([Occupancy(10.1, 10.3, 14.0)], 1, id="came in the same moment, served first"),
        pytest.param([Occupancy(10.1, 14.5, 18.0)], 0, id="came after it and waits, too"),
        pytest.param([Occupancy(8.0, 8.5, 9.5)], 0, id="gone before"),
        pytest.param(
            [Occupancy(9.0, 9.5, 12.0), Occupancy(12.0, 12.5, 14.0)], 1, id="one after the other"
        ),
        pytest.param([Occupancy(9.0, 9.5, 12.0), Occupancy(10.0, 10.5, 14.0)], 2, id="two at once"),
    ],
)
def test_served_first(met: list[Occupancy], count: int) -> None:
    assert while_waiting(WAIT, met, [], 2).served_first == count


def test_whose_prompt_was_read_longest() -> None:
    met = [
        Occupancy(9.0, 13.0, 20.0, "long"),
        Occupancy(12.5, 13.5, 20.0, "short"),
        Occupancy(1.0, 2.0, 30.0, ""),
    ]
    at_engine = while_waiting(WAIT, met, [], 4)

    assert (at_engine.reading_s, at_engine.reading_id) == (3.5, "long")


def test_prompts_read_together() -> None:
    met = [Occupancy(9.0, 12.0, 20.0, "other")]
    looks = [Look(11.0, 2, reading=2, unstarted=0), Look(13.0, 2, reading=1, unstarted=0)]
    at_engine = while_read(WAIT, met, looks, slots=4, own_slots=1)

    assert at_engine == Concurrency(
        reading_s=2.0, reading_id="other", others_mean=1.0, others_reading_ratio=0.5
    )


def test_one_without_a_slot_may_only_wait_while_another_is_read() -> None:
    assert (
        while_read(WAIT, [Occupancy(9.0, 12.0, 20.0, "x")], [], slots=1, own_slots=1)
        == Concurrency()
    )


def test_nobody() -> None:
    assert while_waiting(WAIT, [], [], 4) == Concurrency()


@pytest.mark.parametrize(
    ("looks", "bounds"),
    [
        pytest.param(gauges((2, 1), (2, 2), (2, 1), (2, 0)), (2.0, 3.0), id="let in between two"),
        pytest.param(gauges((2, 0), (2, 1)), (1.0, 4.5), id="let in after the last look"),
        pytest.param(
            gauges((2, 0), (2, 1), from_s=10.005), (1.005, 4.5), id="first asked just after it went"
        ),
        pytest.param(gauges((0, 0), (0, 1)), None, id="the gauge counts the request itself"),
        pytest.param(gauges((0, 0), (1, 2)), None, id="nobody was there before it"),
        pytest.param(gauges((2, 0), (3, 0), (3, 1)), None, id="let in at once; others wait later"),
        pytest.param(gauges((2, 0), (3, 0)), None, id="nobody waited"),
        pytest.param([], None, id="nobody looked"),
    ],
)
def test_bounds_of_a_wait(looks: list[Look], bounds: tuple[float, float] | None) -> None:
    assert queue_bounds(10.0, 14.5, looks) == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("later", "reading"),
    [
        pytest.param(tasks(12.0, {8}, {7}, set()), [1, 1], id="computed before mine was begun"),
        pytest.param(tasks(14.5, {8}, set(), {7}), [1, 0], id="answered before mine did"),
        pytest.param(tasks(14.5, set(), {7}, set()), [0, 1], id="it may be mine"),
    ],
)
def test_who_was_read_in_a_first_batch_shows_later(later: BusySlots, reading: list[int]) -> None:
    first_batch = tasks(11.0, {7}, set(), set())
    looks = of_slots((first_batch, later), begun_s=14.0, first_s=15.0)

    assert [look.reading for look in looks] == reading


def test_two_with_nothing_computed_are_not_both_mine() -> None:
    looks = of_slots((tasks(11.0, {7, 8}, set(), set()),), begun_s=14.0, first_s=15.0)

    assert while_waiting(WAIT, [], looks, 4).others_reading_ratio == 1.0


def test_slots_that_do_not_tell_how_far_they_are() -> None:
    assert of_slots((BusySlots(11.0, 3, 4),), 14.0, 15.0) == [Look(11.0, 3)]


def answered(at_s: float, *tasks: int, slots: int = 1, reading: int | None = None) -> BusySlots:
    """A look at slots that answer these tasks, and perhaps read another's prompt."""
    read = frozenset() if reading is None else frozenset({reading})
    return BusySlots(at_s, len(tasks) + len(read), slots, frozenset(), read, frozenset(tasks))


@pytest.mark.parametrize(
    ("looks", "bounds"),
    [
        pytest.param([answered(11.0, 1), answered(12.0, 1), answered(15.0, 2)], (2.0, 4.5), id="1"),
        pytest.param(
            [answered(11.0, 1), answered(13.0, 2), answered(15.0, 3)], (3.0, 4.5), id="two of them"
        ),
        pytest.param(
            [answered(11.0, 1, 2, slots=2), answered(15.0, 3, slots=2)], (1.0, 4.5), id="two slots"
        ),
        pytest.param([answered(9.0, 1), answered(12.0, 1)], (2.0, 4.5), id="there before it came"),
        pytest.param([answered(12.0, 2), answered(15.0, 2)], None, id="its own hidden thought"),
        pytest.param([answered(12.0, 1)], None, id="not seen afterwards: it may be its own"),
        pytest.param([answered(12.0, 1, slots=2), answered(15.0, 2, slots=2)], None, id="room"),
        pytest.param([answered(12.0, reading=1), answered(15.0, 2)], None, id="maybe its prompt"),
        pytest.param([answered(9.0, 1), answered(15.0, 2)], None, id="gone before it came"),
        pytest.param([BusySlots(12.0, 1, 1), answered(15.0, 2)], None, id="they do not tell"),
        pytest.param([], None, id="no looks"),
    ],
)
def test_bounds_of_a_wait_by_slots(
    looks: list[BusySlots], bounds: tuple[float, float] | None
) -> None:
    assert slots_bounds(10.0, 14.5, looks) == pytest.approx(bounds)
