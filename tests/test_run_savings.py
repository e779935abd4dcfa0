"""What a run would take without its loss is what it takes without it: both are run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.agent import run_of
from fakes.engine import real_engine
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = [pytest.mark.engine, pytest.mark.engine_speed, pytest.mark.long]

NEAR = 0.15  # of the run that was really made without the loss


@pytest.fixture
def proxy(tmp_path: Path, ram_bytes_per_s: float) -> Iterator[RunningProxy]:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with (
        real_engine(threads=1, slots=1, context=8192, alias="m") as engine,
        running_proxy(tmp_path, engine.url) as running,
    ):
        yield running


@pytest.mark.parametrize("planted", ["clock", "shuffled"])
def test_a_lost_prompt(planted: str, proxy: RunningProxy) -> None:
    without = run_of(proxy, "without")
    lossy = run_of(proxy, "lossy", **{planted: True})

    first = lossy["fix_first"]
    assert first["cause"] == "prompt-cache-miss", lossy
    told, real = first["wall_then_ms"], without["wall_ms"]
    assert told == pytest.approx(real, rel=NEAR), (told, real, lossy["wall_ms"])
    assert lossy["wall_ms"] > 1.5 * real, "the loss is worth the while"
