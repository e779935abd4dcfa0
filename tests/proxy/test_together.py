"""Work that is done in a row, in its order, and what breaks in it."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from slowtok.proxy import together as module
from slowtok.proxy.together import MOST_IN_A_ROW, MOST_S, Together


class Clock:
    """Time that work takes."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


async def turns(count: int) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_long_work_is_not_done_in_a_row(clock: Clock) -> None:
    done: list[int | str] = []

    def work(number: int) -> None:
        clock.now_s += MOST_S / 2
        done.append(number)

    together = Together(Counter(), "here")
    for number in range(4):
        together.add(partial(work, number))
    await turns(1)
    asyncio.get_running_loop().call_soon(done.append, "another")
    await turns(3)

    assert done == [0, 1, "another", 2, 3]


async def test_work_is_done_in_its_order_and_others_run_in_between() -> None:
    done: list[int | str] = []
    together = Together(Counter(), "here")
    for number in range(MOST_IN_A_ROW + 1):
        together.add(lambda number=number: done.append(number))  # type: ignore[misc]
    asyncio.get_running_loop().call_soon(done.append, "another")

    assert done == []
    await turns(3)
    assert done == [*range(MOST_IN_A_ROW), "another", MOST_IN_A_ROW]


async def test_work_waits_as_long_as_each_turn_brings_more() -> None:
    done: list[int] = []
    together = Together(Counter(), "here")
    for number in range(4):
        together.add(partial(done.append, number))
        await turns(1)
        assert done == []

    await turns(1)
    assert done == [0, 1, 2, 3]


async def test_work_waits_no_longer_than_until_there_is_enough_for_a_row() -> None:
    done: list[int] = []
    together = Together(Counter(), "here")
    for number in range(MOST_IN_A_ROW):
        together.add(partial(done.append, number))
        await turns(1)

    assert done == [*range(MOST_IN_A_ROW)]


async def test_work_that_raises_costs_only_itself() -> None:
    done: list[int] = []
    failures: Counter[str] = Counter()
    together = Together(failures, "here")
    together.add(lambda: 1 / 0)
    together.add(lambda: done.append(1))
    await turns(2)

    assert done == [1]
    assert failures == {"here": 1}


async def test_work_for_later_waits_and_may_be_done_at_once() -> None:
    done: list[int] = []
    together = Together(Counter(), "here", after_s=3600.0)
    together.add(lambda: done.append(1))
    await turns(2)
    assert done == []

    together.do_all()
    assert done == [1]


@pytest.mark.parametrize("after_s", [0.0, 1e-6])
async def test_what_work_adds_is_done_too(after_s: float) -> None:
    done = asyncio.Event()
    together = Together(Counter(), "here", after_s=after_s)
    together.add(lambda: together.add(done.set))
    await asyncio.wait_for(done.wait(), 5)
