"""A wall clock that jumps: times are taken from the other clock, and nothing else may break."""

import time

import pytest

from fakes.bystander import STOP, begin, pass_on, unharmed
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, chunk

DAY_S = 86_400.0


@pytest.mark.parametrize(
    "now_unix_s",
    [0.0, 1e9, 4e9, 2e11, -DAY_S],
    ids=["1970", "back", "ahead", "far ahead", "before 1970"],
)
async def test_clock_that_jumps_within_a_stream(
    now_unix_s: float, proxy: Served, engine: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with unharmed(proxy, engine):
        client = await proxy.connect()
        arrived = await begin(engine, client)
        await pass_on(arrived, client, 0)

        monkeypatch.setattr(time, "time", lambda: now_unix_s)

        await pass_on(arrived, client, 1)
        await arrived.send(chunk(STOP) + LAST_CHUNK)
        assert [await client.chunk(), await client.chunk()] == [STOP, b""]
        arrived.over.set()
        later = await begin(engine, client)  # one that begins in that time
        await later.send(chunk(STOP) + LAST_CHUNK)
        assert [await client.chunk(), await client.chunk()] == [STOP, b""]
        later.over.set()
        client.close()
        await proxy.newest(2)

    records = proxy.records()
    assert len({record["id"] for record in records}) == len(records) == 4
    assert {record["ended"] for record in records} == {"stop"}
    assert all(0 < record["timing"]["total_ms"] < 60_000 for record in records)
    assert proxy.proxy.observer.failures == {}
