"""What a run would take without its loss is what it takes without it: both are run."""

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.engine import real_engine
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = [pytest.mark.engine, pytest.mark.engine_speed, pytest.mark.long]

STEPS = 8
TOOL_S = 0.1
NEAR = 0.15  # of the run that was really made without the loss


def rules_of(name: str) -> list[str]:
    """As many tokens for each run, and nothing that another run's prompt has, too."""
    number = random.Random(name).randrange
    return [
        f"Rule {number(1000):03}: answer {number(1000):03} in {number(1000):03} words."
        for _ in range(25)
    ]


def steps(name: str, *, clock: bool = False, shuffled: bool = False) -> Iterator[dict[str, Any]]:
    """The requests of a run: each has all messages of the one before, and two more.

    Another run's prompt is another one, so that neither has the other's cache.
    """
    said: list[dict[str, Any]] = [{"role": "user", "content": "Tidy up the folder."}]
    order, all_rules = random.Random(4), rules_of(name)
    for number in range(STEPS):
        now = f" It is 10:{number:02}:{7 * number % 60:02}." if clock else ""
        rules = order.sample(all_rules, len(all_rules)) if shuffled else all_rules
        yield {
            "model": "m",
            "messages": [{"role": "system", "content": f"{name}.{now} {' '.join(rules)}"}, *said],
            "max_tokens": 12,
            "temperature": 0,
            "ignore_eos": True,
        }
        said += [
            {"role": "assistant", "content": f"I look at file {number}."},
            {"role": "user", "content": f"File {number} is {number * 37} bytes long. Go on."},
        ]


def run_of(proxy: RunningProxy, name: str, **planted: bool) -> dict[str, Any]:
    """Make a run, and return its account."""
    for body in steps(name, **planted):
        url = f"{proxy.url}/run/{name}/v1/chat/completions"
        httpx.post(url, json=body, timeout=300).raise_for_status()
        time.sleep(TOOL_S)
    while True:
        found: dict[str, Any] = proxy.get(f"/slowtok/runs/{name}")
        if found["requests"] == STEPS and not found.get("live"):
            return found
        time.sleep(0.05)


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
