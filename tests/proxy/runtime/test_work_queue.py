"""Work that is done piece by piece, in its order, and what breaks in it."""

import asyncio
from collections import Counter

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


@pytest.mark.parametrize("after_s", [0.0, 1e-6])
async def test_what_work_adds_is_done_too(after_s: float) -> None:
    done = asyncio.Event()
    work = WorkQueue(Counter(), "here", after_s=after_s)
    work.add(lambda: work.add(done.set))
    await asyncio.wait_for(done.wait(), 5)
