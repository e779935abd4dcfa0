import asyncio
from typing import Any

import orjson

from slowtok.proxy.outputs.record_ring import RecordRing


def record(name: str) -> dict[str, Any]:
    return {"id": name}


def kept(name: str) -> bytes:
    return orjson.dumps(record(name))


async def test_unknown_record_is_not_waited_for() -> None:
    async with asyncio.timeout(5):
        assert await RecordRing(2).get("a", timeout_s=60) is None


async def test_announced_record_is_waited_for() -> None:
    store = RecordRing(2)
    store.expect("a")
    readers = [asyncio.create_task(store.get("a", timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(reader.done() for reader in readers)
    store.add(record("a"))

    assert await asyncio.gather(*readers) == [kept("a")] * 2
    assert await store.get("a", timeout_s=60) == kept("a")


async def test_waiting_ends() -> None:
    store = RecordRing(2)
    store.expect("a")

    assert await store.get("a", timeout_s=0) is None


async def test_record_that_will_not_come_is_not_waited_for() -> None:
    store = RecordRing(2)
    store.expect("a")
    reader = asyncio.create_task(store.get("a", timeout_s=60))
    await asyncio.sleep(0)
    store.forget("a")
    store.forget("never announced")

    async with asyncio.timeout(5):
        assert await reader is None


async def test_oldest_records_go() -> None:
    store = RecordRing(2)
    for name in ("a", "b", "c"):
        store.add(record(name))

    assert orjson.loads(store.newest_first()) == [record("c"), record("b")]
    assert orjson.loads(store.newest_first(1)) == [record("c")]
    assert await store.get("a", timeout_s=60) is None
