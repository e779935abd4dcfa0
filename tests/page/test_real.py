"""The page of `slowtok serve` before a real llama-server, with samples of this machine."""

from pathlib import Path

import pytest

from fakes.browser import Browser
from fakes.engine import real_engine
from fakes.running import keep_ram_bandwidth, running_proxy

pytestmark = pytest.mark.engine


def test_a_real_request_is_shown_with_its_rate_and_its_samples(
    browser: Browser, tmp_path: Path, ram_bytes_per_s: float
) -> None:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with real_engine(threads=1) as engine, running_proxy(tmp_path, engine.url) as proxy:
        browser.open(f"{proxy.url}/slowtok/")
        browser.says("#link-state", "live")
        asked = {
            "model": "m",
            "messages": [{"role": "user", "content": "Count to fifty."}],
            "max_tokens": 160,
            "ignore_eos": True,
            "stream": True,
        }
        record = proxy.ask(asked).record

        browser.says("#filter-count", "1 of 1")
        browser.find(f'a[data-id="{record["id"]}"]').click()
        browser.find("#lanes .plot canvas")
        browser.says("#view-request", f"{record['tokens']['completion']} tokens")
        samples = proxy.get(f"/slowtok/requests/{record['id']}/samples")
        browser.open(f"{proxy.url}/slowtok/#machine")
        browser.says("#view-machine", "llama-server")

    made = sum(tps * samples["tokens"]["bin_s"] for tps in samples["tokens"]["tps"])
    assert made == pytest.approx(record["tokens"]["completion"] - 1, rel=0.02)
    assert {"prefill", "decode"} <= {phase["phase"] for phase in samples["phases"]}
    assert samples["host"]["lanes"]["server_cpu_cores"]
