"""Work that is done piece by piece, in its order, and what breaks in it."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from slowtok.proxy.runtime.work_queue import WorkQueue


async def turns(count: int) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_others_run_between_two_pieces() -> None:
    done: list[int | str] = []
    work = WorkQueue(Counter(), "here")
    for number in range(2):
        work.add(lambda number=number: done.append(number))  # type: ignore[misc]
    asyncio.get_running_loop().call_soon(done.append, "another")

    assert done == []
    await turns(3)
    assert done == [0, "another", 1]


async def test_work_that_raises_costs_only_itself() -> None:
    done: list[int] = []
    failures: Counter[str] = Counter()
    work = WorkQueue(failures, "here")
    work.add(lambda: 1 / 0)
    work.add(lambda: done.append(1))
    await turns(2)

    assert done == [1]
    assert failures == {"here": 1}


async def test_work_for_later_waits_and_may_be_done_at_once() -> None:
    done: list[int] = []
    work = WorkQueue(Counter(), "here", after_s=3600.0)
    work.add(lambda: done.append(1))
    await turns(2)
    assert done == []

    work.do_all()
    assert done == [1]


async def test_nothing_stays_scheduled_for_work_that_was_done_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def record(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(call_later(*arguments))
        return timers[-1]

    monkeypatch.setattr(loop, "call_later", record)
    work = WorkQueue(Counter(), "here", after_s=3600.0)
    work.add(lambda: work.add(lambda: None))  # what is added meanwhile is done at once, too
    work.do_all()
    assert all(timer.cancelled() for timer in timers)

    work.add(lambda: None)
    work.add(lambda: None)
    assert [timer.cancelled() for timer in timers].count(False) == 1


async def test_one_piece_a_turn_after_all_was_done_at_once() -> None:
    done: list[int] = []
    work = WorkQueue(Counter(), "here")
    for number in range(4):
        work.add(lambda number=number: done.append(number))  # type: ignore[misc]
        if number == 0:
            work.do_all()
    counts = []
    while len(done) < 4:
        await turns(1)
        counts.append(len(done))
    assert max(after - before for before, after in pairwise([1, *counts])) == 1


async def test_work_may_do_all_the_rest_at_once() -> None:
    done: list[int] = []
    work = WorkQueue(Counter(), "here")
    work.add(work.do_all)
    work.add(lambda: done.append(1))
    work.add(lambda: work.add(lambda: done.append(2)))
    await turns(4)
    assert done == [1, 2]

    work.add(lambda: done.append(3))
    await turns(2)
    assert done == [1, 2, 3]


@pytest.mark.parametrize("after_s", [0.0, 1e-6])
async def test_what_work_adds_is_done_too(after_s: float) -> None:
    done = asyncio.Event()
    work = WorkQueue(Counter(), "here", after_s=after_s)
    work.add(lambda: work.add(done.set))
    await asyncio.wait_for(done.wait(), 5)
