"""What was freed goes back to the system when it has become much, and not for each little."""

import asyncio
import threading

import pytest

from fakes.wire import until
from slowtok.proxy.runtime.interpreter import TRIM_AFTER_BYTES, Heap, find_trim


async def test_it_is_done_for_much_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slowtok.proxy.runtime.interpreter.SETTLE_S", 0.0)
    threads: list[int] = []
    heap = Heap(lambda: threads.append(threading.get_ident()))

    heap.freed(TRIM_AFTER_BYTES - 1)
    await asyncio.sleep(0)
    assert threads == []

    heap.freed(1)
    await until(lambda: threads)
    assert threads != [threading.get_ident()]
    heap.freed(1)
    await asyncio.sleep(0)
    assert len(threads) == 1


async def test_where_it_cannot_be_done_nothing_is() -> None:
    Heap(None).freed(10 * TRIM_AFTER_BYTES)


def test_the_library_can_be_told_or_there_is_nothing_to_call() -> None:
    trim = find_trim()
    if trim is None:
        pytest.skip("the C library is not glibc")
    assert trim() in (0, 1)
