"""The live page in a real browser, before the real proxy: what a reader sees and can do."""

import re
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fakes.browser import Browser
from fakes.page_cases import dated, simulated
from fakes.page_stage import Stage, put_run
from slowtok.detectors.case.case import Case

MARKUP = "<img src=x onerror=\"document.title='broken'\">"
UP, DOWN, ENTER, ESCAPE, TAB = "\ue013", "\ue015", "\ue007", "\ue00c", "\ue004"
SLOW = ("thermal-throttle", "model-too-big", "queued", "prompt-cache-miss")


def recent(*names: str) -> list[Case]:
    """Simulated requests of the last minutes, the oldest first."""
    now_s = time.time()
    return [dated(simulated(name), now_s - 60 * (len(names) - i)) for i, name in enumerate(names)]


def rows(browser: Browser) -> list[str]:
    """The causes in the list, from above."""
    cells = browser.run(
        "return [...document.querySelectorAll('#recent tbody tr')]"
        ".map(row => row.cells[2].innerText)"
    )
    return list(cells)


def focused(browser: Browser) -> Any:
    return browser.run("return document.activeElement.dataset.id ?? null")


def test_a_slow_request_is_found_with_its_cause_and_remedy(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(*recent("model-too-big"))
    browser.open(stage.page)

    browser.find(f'a[data-id="{record["id"]}"]').click()
    browser.says("#view-request", "What to do")

    seen = browser.text("#view-request")
    finding = record["findings"][0]
    assert "Slow in decode" in seen
    assert finding["cause"] in seen
    assert finding["summary"] in seen
    assert finding["remedy"] in seen
    for cleared in record["cleared"]:
        assert cleared in seen
    for hidden in record["not_visible"]:
        assert hidden["fact"] in seen


def test_it_says_first_whether_all_is_well_and_what_to_fix(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#lately", "No request lately")

    hot, queued = stage.put(*recent("thermal-throttle", "queued"))
    browser.says("#lately", "2 slow of 2 requests lately")

    worst = max((hot, queued), key=lambda record: record["findings"][0]["lost_ms"])
    first = worst["findings"][0]
    assert f"Fix first: {first['cause']} (lost " in browser.text("#lately")
    assert first["remedy"] in browser.text("#lately")
    browser.find("#lately a").click()
    browser.says("#view-request", first["summary"])


def test_a_new_record_appears_and_is_announced(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#link-state", "live")
    browser.says("#recent", "No request yet")

    stage.put(*recent("queued"))

    browser.says("#recent", "queued")
    assert browser.run(
        "const e = document.getElementById('announcer');"
        "return [e.ariaLive, e.textContent.slice(0, 26)]"
    ) == ["polite", "New request: slow, queued,"]


def test_the_costliest_request_can_be_put_first(browser: Browser, stage: Stage) -> None:
    records = stage.put(*recent(*SLOW))
    browser.open(stage.page)
    browser.says("#filter-count", "4 of 4")
    lost_ms = {r["id"]: sum(f["lost_ms"] for f in r["findings"]) for r in records}

    browser.find("[name=order] option[value=lost]").click()

    browser.until(lambda: rows(browser)[0] != "prompt-cache-miss")
    first = browser.run("return document.querySelector('#recent a').dataset.id")
    assert first == max(lost_ms, key=lambda name: lost_ms[name])
    assert browser.run(
        "return [...document.querySelectorAll('#recent tbody tr')].every(r => r.cells[8].innerText)"
    )


def test_filters(browser: Browser, stage: Stage) -> None:
    stage.put(*recent(*SLOW, "long-context"))
    browser.open(stage.page)
    browser.says("#filter-count", "5 of 5")

    browser.find("[name=cause] option[value=queued]").click()
    browser.says("#filter-count", "1 of 5")
    assert rows(browser) == ["queued"]
    browser.find("[type=reset]").click()
    browser.says("#filter-count", "5 of 5")
    browser.find("[name=verdict] option[value=slow]").click()
    browser.says("#filter-count", "4 of 5")
    browser.find("[name=text]").send_keys("BIG")
    browser.says("#filter-count", "1 of 5")
    assert rows(browser) == ["model-too-big"]
    browser.find("[name=text]").send_keys("nothing is called so")
    browser.says("#recent", "No request matches")


def test_keys_walk_open_and_come_back(browser: Browser, stage: Stage) -> None:
    ids = [record["id"] for record in stage.put(*recent(*SLOW))][::-1]
    browser.open(stage.page)
    browser.says("#filter-count", "4 of 4")

    walked = []
    for key in ("j", "j", DOWN, "k", UP, UP):
        browser.press(key)
        walked.append(ids.index(focused(browser)))
    assert walked == [0, 1, 2, 1, 0, 0]

    browser.press("j", ENTER)
    browser.says("#view-request", "What to do")
    assert browser.run("return location.hash") == f"#request/{ids[1]}"
    browser.press("j")
    browser.until(lambda: browser.run("return location.hash") == f"#request/{ids[2]}")
    browser.says("#view-request", ids[2])
    browser.press(ESCAPE)
    browser.until(lambda: focused(browser) == ids[2])
    browser.press("/")
    assert browser.run("return document.activeElement.name") == "text"
    browser.press("j")
    assert browser.run("return document.activeElement.value") == "j"


def test_focus_stays_when_a_record_comes(browser: Browser, stage: Stage) -> None:
    [first] = stage.put(*recent("queued"))
    browser.open(stage.page)
    browser.says("#filter-count", "1 of 1")
    browser.press("j")

    stage.put(*recent("model-too-big"))

    browser.says("#filter-count", "2 of 2")
    assert focused(browser) == first["id"]


def test_tab_goes_from_the_skip_link_to_what_is_on_the_page(browser: Browser, stage: Stage) -> None:
    stage.put(*recent("queued"))
    browser.open(stage.page)
    browser.says("#filter-count", "1 of 1")

    reached = []
    for _ in range(14):
        browser.press(TAB)
        reached.append(
            browser.run(
                "const e = document.activeElement;"
                "return [e.name || e.type || e.innerText, getComputedStyle(e).outlineStyle]"
            )
        )

    names = [name for name, _ in reached]
    views = ["Requests", "Runs", "Engines and GPUs", "Trends"]
    assert names[:6] == ["Skip to content", "slowtok", *views]
    assert names[6] == "one request"  # that lost most, above the list
    assert names[7:13] == ["text", "verdict", "cause", "model", "order", "reset"]
    assert "none" not in {outline for _, outline in reached}


def test_remedy_is_copied(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(*recent("thermal-throttle"))
    browser.open(f"{stage.page}#request/{record['id']}")
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": stage.url},
    )

    browser.find(".remedy button.copy").click()

    browser.says(".remedy button.copy", "Copied")
    copied = browser.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
    )
    assert copied == record["findings"][0]["remedy"]


def test_lanes_lie_on_one_axis_with_words_beside_them(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(*recent("thermal-throttle"))
    browser.open(f"{stage.page}#request/{record['id']}")
    browser.find("#lanes .plot canvas")

    charts = browser.run(
        "return [...document.querySelectorAll('#lanes .plot')].map(p => [p.ariaLabel,"
        " p.plot.scales.x.min, p.plot.scales.x.max, p.plot.bbox.left])"
    )

    labels = [label for label, *_ in charts]
    for title in ("Token rate", "Utilisation", "Power", "Clocks", "Temperature", "VRAM", "CPU"):
        assert any(label.startswith(f"{title}. ") for label in labels), (title, labels)
    assert any("clocks held down by" in label and "thermal" in label for label in labels)
    assert any("expected" in label for label in labels)
    total_s = record["timing"]["total_ms"] / 1000
    assert {low for _, low, *_ in charts} == {0}
    assert [high for _, _, high, _ in charts] == [pytest.approx(total_s, abs=0.01)] * len(charts)
    assert len({left for *_, left in charts}) == 1


def test_a_step_of_the_rate_is_marked_with_what_changed_there(
    browser: Browser, stage: Stage
) -> None:
    [record] = stage.put(dated(simulated("hardware-slowdown", 2), time.time()))
    browser.open(f"{stage.page}#request/{record['id']}")
    browser.find("#lanes .plot canvas")

    step = httpx.get(f"{stage.page}requests/{record['id']}/samples").json()["step"]
    seen = browser.text("#lanes .step")
    assert f"After {step['at_s']:.2f} s the rate fell from 43.5 tok/s to 14.1 tok/s" in seen
    assert "GPU 0: Clocks, processors: from 1,680 MHz to 360 MHz" in seen
    assert "GPU 0: clocks held down by hw-power-brake, from there on" in seen
    assert "Temperature" not in seen
    lefts = browser.run(
        "return [...document.querySelectorAll('#lanes .plot')].map(p => [p.getBoundingClientRect()"
        ".left, p.plot.valToPos(arguments[0], 'x'), p.plot.bbox.left])",
        step["at_s"],
    )
    assert len(lefts) > 5
    assert len({tuple(map(round, place)) for place in lefts}) == 1  # one line through all charts


def test_legends_are_silent_until_something_is_pointed_at(browser: Browser, stage: Stage) -> None:
    [record] = stage.put(*recent("thermal-throttle"))
    browser.open(f"{stage.page}#request/{record['id']}")
    browser.find("#lanes .plot canvas")

    legend = browser.text("#lanes .plot .u-legend")
    assert legend.strip() == "rate"


def test_text_from_outside_stays_text(browser: Browser, stage: Stage) -> None:
    [odd] = recent("queued")
    odd = dated(odd, time.time(), model=MARKUP)
    [record] = stage.put(replace(odd, server=replace(odd.server, version=MARKUP)))
    arrival = stage.stream(model=MARKUP)
    browser.open(stage.page)

    browser.says("#recent", MARKUP)
    browser.says("#running", MARKUP)
    browser.open(f"{stage.page}#request/{record['id']}")
    browser.says("#view-request", MARKUP)
    assert browser.all("main img") == []
    assert browser.driver.title == "slowtok"
    stage.end(arrival)


def test_running_requests_come_move_and_go(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#running", "Nothing is running")

    arrival = stage.stream(max_tokens=100)
    browser.says("#running", "waiting for the first token")
    stage.send_head(arrival)
    stage.send_tokens(arrival, 12)
    browser.says("#running", "decoding")
    browser.says("#running", "12 tokens or more, at most 88 to come")
    stage.end(arrival)

    browser.says("#running", "Nothing is running")
    browser.says("#filter-count", "1 of 1")


def test_engines_and_gpus(browser: Browser, stage: Stage) -> None:
    browser.open(f"{stage.page}#machine")
    browser.says("#view-machine", "slowtok itself")

    seen = browser.text("#view-machine")
    assert "llama-server" in seen
    [gpu, *_] = simulated("thermal-throttle").device.gpus or ()  # the stage's own
    assert str(gpu.name) in seen
    assert re.search(r"VRAM [\d.]+ GiB: server", " ".join(seen.split()))
    assert "of GPU 0" in seen  # what of it is not visible
    assert "null" not in seen
    assert "[object" not in seen


def test_it_says_what_fits_and_what_does_not(browser: Browser, stage: Stage) -> None:
    [engine] = stage.served.proxy.engines.all
    model = simulated("model-too-big").model
    engine.models = {"big": replace(model, name="big")}
    engine.probe = replace(engine.probe, context_tokens=131_072, slots=2)
    browser.open(f"{stage.page}#machine")
    browser.says("#view-machine .fit", "Fit: big")

    seen = browser.text("#view-machine .fit")
    [fit] = httpx.get(f"{stage.url}/slowtok/status").json()["engines"][0]["fit"]
    assert fit["said"].removeprefix("big: ") in seen
    assert re.search(r"weights [\d.]+ GiB, KV cache [\d.]+ GiB of [\d.]+ GiB VRAM", seen)
    assert "more than there is" in seen


def test_an_engine_that_is_gone_looks_gone(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#running", "Nothing is running")
    [engine] = stage.served.proxy.engines.all

    async def lose() -> None:
        stage.engine.looks.clear()  # the next look finds nothing there, either
        stage.served.proxy.engines.lose(engine.name)

    stage.call(lose())

    browser.says("#running", f"gone {engine.url} has not answered since")
    assert "No engine answers any more" in browser.text("#running")
    browser.open(f"{stage.page}#machine")
    browser.says("#view-machine", "It has not answered since")
    assert browser.run("return document.querySelector('.card').dataset.state") == "down"


def test_trends_over_days(browser: Browser, stage: Stage) -> None:
    now_s = time.time()
    days = [dated(simulated("long-context"), now_s - 86400 * back) for back in (3, 2, 1)]
    stage.put(*days)
    browser.open(f"{stage.page}#trends")
    browser.find("#view-trends .plot canvas")

    assert "Median" in browser.run("return document.getElementById('view-trends').textContent")
    status = httpx.get(f"{stage.url}/slowtok/status").json()
    listed = {row["setup"] for row in status["baselines_by_day"]}
    assert len(browser.all("#view-trends article")) == len(listed)
    points = browser.run(
        "return document.querySelector('#view-trends .plot').plot.data[0].map(s => s / 86400)"
    )
    assert [day - points[0] for day in points] == [0, 1, 2]


@pytest.fixture(params=["now", "request", "stepped", "runs", "machine", "trends"])
def view(request: pytest.FixtureRequest, stage: Stage) -> str:
    now_s = time.time()
    records = stage.put(*recent(*SLOW), dated(simulated("hardware-slowdown", 2), now_s))
    put_run(stage, "run", *["tidy-up"] * 3)
    of = {"request": f"request/{records[1]['id']}", "stepped": f"request/{records[-1]['id']}"}
    return (of | {"runs": "runs/run"}).get(request.param, str(request.param))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [2560, 1280, 360])
def test_nothing_sticks_out_and_all_can_be_read(
    scheme: str, width: int, view: str, browser: Browser, stage: Stage
) -> None:
    browser.size(width, 800)
    browser.scheme(scheme)
    browser.open(f"{stage.page}#{view}")
    shown = f"#view-{view.partition('/')[0]}"
    browser.until(lambda: len(browser.text(shown)) > 100)
    if view.startswith(("request", "trends")):
        browser.find(f"{shown} .plot canvas")

    assert browser.overflow() == []
    assert browser.run(LOW_CONTRAST) == []
    assert (
        browser.run(
            "return [...document.querySelectorAll('button, input, select, a')]"
            ".filter(e => !(e.innerText || e.ariaLabel || e.labels?.length)).length"
        )
        == 0
    )
    assert browser.run("return document.querySelectorAll('main h1').length >= 1")


LOW_CONTRAST = """
const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const rgb = text => text.match(/[0-9.]+/g).map(Number);
const behind = e => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0.99) return c;
  }
};
const found = new Set();
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  const isText = walker.currentNode.data.trim() && !e.closest('script, noscript');
  if (!isText || !e.checkVisibility()) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.add(`${e.tagName}.${e.className} ${ratio.toFixed(2)}`);
}
return [...found];
"""  # WCAG 2.2, success criterion 1.4.3
