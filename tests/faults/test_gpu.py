"""A GPU that is lost, or a driver that hangs, in the middle of a stream: it costs its readings.

The driver is a stand-in that the real binding loads, in the real sampling process.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.bystander import STOP, begin, next_request_works, pass_on
from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.stand_in import Script
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, chunk
from slowtok.proxy.app import Proxy
from slowtok.proxy.sampling.supervisor import Sampler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is built for Linux")
WAIT_S = 20.0


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script(tmp_path / "nvml.txt", RTX_4090)
    monkeypatch.setenv("NVML_STAND_IN", str(script.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in.library().parent))
    return script


@pytest.fixture
async def seeing(script: Script, engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A proxy that samples for real, once it sees the GPU."""

    def use(proxy: Proxy) -> None:
        proxy.sampler = Sampler()

    async with serving(tmp_path, engine.url, change=use) as proxy:
        await status_with(proxy, lambda status: bool(status["gpus"]))
        yield proxy


async def status_with(proxy: Served, true: Any) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        while not true(status := await proxy.own("/slowtok/status")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    found: dict[str, Any] = status
    return found


@pytest.mark.parametrize(
    "fault",
    [{"gpu0": "!15"}, {"gpu0": "!28"}],
    ids=["fallen off the bus", "needs a reset"],
)
async def test_gpu_that_is_lost_within_a_stream(
    fault: dict[str, str], seeing: Served, script: Script, engine: Upstream
) -> None:
    client = await seeing.connect()
    arrived = await begin(engine, client)
    await pass_on(arrived, client, 0)

    script.set(**fault)
    status = await status_with(seeing, lambda status: "GPU 0: " in str(status["not_visible"]))
    for number in range(1, 20):
        await pass_on(arrived, client, number)
    await arrived.send(chunk(STOP) + LAST_CHUNK)

    assert [await client.chunk(), await client.chunk()] == [STOP, b""]
    arrived.over.set()
    assert (await seeing.newest())["ended"] == "stop"
    assert status["counts"]["failures"] == {}
    assert status["overhead"]["sampling"]["restarts"] == 0
    await next_request_works(engine, client)
    script.set(gpu0=None)
    await status_with(seeing, lambda status: "GPU 0: " not in str(status["not_visible"]))


async def test_driver_that_hangs_within_a_stream(
    seeing: Served, script: Script, engine: Upstream
) -> None:
    client = await seeing.connect()
    arrived = await begin(engine, client)

    script.gpu(0, {"PerformanceState": "~60000 2"})
    for number in range(20):
        await pass_on(arrived, client, number)
        await asyncio.sleep(0.02)
    await arrived.send(chunk(STOP) + LAST_CHUNK)

    assert [await client.chunk(), await client.chunk()] == [STOP, b""]
    arrived.over.set()
    assert (await seeing.newest())["ended"] == "stop"
    await next_request_works(engine, client)
    status = await seeing.own("/slowtok/status")
    assert status["counts"]["failures"] == {}
    assert status["overhead"]["sampling"]["restarts"] == 0
