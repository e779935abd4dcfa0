"""The page of `slowtok serve` before a real llama-server, with samples of this machine."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fakes.browser import Browser
from fakes.engine import real_engine
from fakes.running import keep_ram_bandwidth, running_proxy

pytestmark = [pytest.mark.engine, pytest.mark.engine_speed]


def long_prompt(words: int) -> dict[str, Any]:
    """A prompt of which no part is in the engine's cache."""
    draw = random.Random(words)
    text = " ".join(draw.choice(("apple", "river", "stone", "cloud")) for _ in range(words))
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
    }


def test_a_real_request_is_shown_with_its_rate_and_its_samples(
    browser: Browser, tmp_path: Path, ram_bytes_per_s: float
) -> None:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with real_engine(threads=1) as engine, running_proxy(tmp_path, engine.url) as proxy:
        proxy.ask(long_prompt(400))  # what is learned of it: a prompt's length is never told
        browser.open(f"{proxy.url}/slowtok/")
        browser.says("#link-state", "live")
        with ThreadPoolExecutor() as pool:
            read = pool.submit(proxy.ask, long_prompt(800))
            browser.says("#running", "prompt tokens read")
            said = browser.text("#running")
            prompt = read.result().record["tokens"]["prompt"]
        guessed = re.search(r"of about ([\d,]+) prompt tokens", said)
        assert guessed, said
        assert int(guessed[1].replace(",", "")) == pytest.approx(prompt, rel=0.25)
        asked = {
            "model": "m",
            "messages": [{"role": "user", "content": "Count to fifty."}],
            "max_tokens": 160,
            "ignore_eos": True,
            "stream": True,
        }
        record = proxy.ask(asked).record

        browser.says("#filter-count", "3 of 3")
        browser.find(f'a[data-id="{record["id"]}"]').click()
        browser.find("#lanes .plot canvas")
        browser.says("#view-request", f"{record['tokens']['completion']} tokens")
        samples = proxy.get(f"/slowtok/requests/{record['id']}/samples")
        browser.open(f"{proxy.url}/slowtok/#machine")
        browser.says("#view-machine", "llama-server")
        browser.says("#view-machine", "KV cache")
        assert "in RAM" in browser.text(".fit")
        browser.driver.get("about:blank")  # else the page asks on while the proxy goes

    made = sum(tps * samples["tokens"]["bin_s"] for tps in samples["tokens"]["tps"])
    assert made == pytest.approx(record["tokens"]["completion"] - 1, rel=0.02)
    assert {"prefill", "decode"} <= {phase["phase"] for phase in samples["phases"]}
    assert samples["host"]["lanes"]["server_cpu_cores"]
