"""What the page calls things: requests that failed, units, setups."""

import time
from dataclasses import replace
from typing import Any

from fakes.browser import Browser
from fakes.cases import healthy
from fakes.page_cases import simulated
from fakes.page_stage import Stage
from slowtok.detectors.case.case import Tokens
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.record import make_record


def failed(name: str, ended: str, status: int | None, *, judged: bool) -> dict[str, Any]:
    """The record of a request that was cut short; of one that merely passed without a verdict."""
    short = healthy()
    line = replace(
        short.timeline, request_id=name, ended=ended, status=status, started_unix_s=time.time()
    )
    case = replace(
        short,
        timeline=replace(line, tokens=Tokens(), model="m" if judged else None),
        phases=replace(short.phases, decode_tps=None, decode_s=None),
    )
    return make_record(case, diagnose(case) if judged else None)


def test_what_failed_does_not_look_as_if_it_had_passed(browser: Browser, stage: Stage) -> None:
    for record in (
        failed("a", "upstream-refused", 502, judged=False),
        failed("b", "no-engine", 502, judged=True),
        failed("c", "client-gone", 200, judged=True),
        failed("d", "complete", 200, judged=False),
    ):
        stage.served.proxy.records.add(record)
    browser.open(stage.page)
    browser.says("#filter-count", "4 of 4")

    seen = browser.run(
        "return [...document.querySelectorAll('#recent tbody tr')].map("
        "row => [1, 2, 3, 4].map(i => row.cells[i].innerText).join('|'))"
    )
    path = healthy().timeline.path
    assert seen == [
        f"passed|||{path}",
        f"client gone|the client left before the end|m|{path}",
        f"failed 502|there was no engine to ask|m|{path}",
        f"failed 502|the engine could not be reached||{path}",
    ]
    browser.find("[name=verdict] option[value=failed]").click()
    browser.says("#filter-count", "2 of 4")
    browser.open(f"{stage.page}#request/b")
    browser.says("#view-request", "Answered with 502")
    browser.says("#view-request", "What to look at: start llama-server, vLLM or Ollama")
    browser.says("#lanes", "no longer kept")
    assert all("/samples" in complaint for complaint in browser.complaints())


def test_what_a_verdict_leaves_open_takes_nothing_from_it(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(simulated("thermal-throttle"))
    stage.served.proxy.records.add(record | {"id": "open", "reason": "most of it is unexplained"})
    bare = {"id": "bare", "reason": "not said", "findings": [], "verdict": "slow"}
    stage.served.proxy.records.add(record | bare)

    browser.open(f"{stage.page}#request/open")
    browser.says("#view-request", "What the verdict leaves open: most of it is unexplained")
    assert "thermal-throttle the cause to cure first" in browser.text("#view-request")
    browser.open(f"{stage.page}#request/bare")
    browser.says("#view-request", "no known cause fits")
    browser.says("#lanes", "no longer kept")
    assert all("/samples" in complaint for complaint in browser.complaints())


def test_one_unit_of_bandwidth(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    values = [32.1e9, 5e8, 2.5e6, 900]

    said = browser.module("format", "given[0].map(it.bandwidth)", values)
    assert said == ["32.1 GB/s", "0.5 GB/s", "2.5 MB/s", "0.9 kB/s"]
    assert browser.module("format", "it.measured(1e9, 'bytes/s')") == "1 GB/s"


def test_setups_are_told_in_words(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    parts = ["kv f16", "ctx 0-1k", "2", "3-4", "alone", "speculative", "llama-server"]

    assert browser.module("trends", "given[0].map(it.inWords)", parts) == [
        "KV cache f16",
        "0 to 1k tokens of context",
        "2 requests at once",
        "3 to 4 requests at once",
        "one request at a time",
        "speculative decoding",
        "llama-server",
    ]
