"""An agent's run against a real engine: eight steps that grow, with a loss planted or not."""

import random
import time
from collections.abc import Iterator
from typing import Any

import httpx

from fakes.running import RunningProxy

STEPS = 8
TOOL_S = 0.1


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
