"""What a running request looks like: the page's own judgement, on data alone."""

from typing import Any

import pytest

from fakes.browser import Browser
from fakes.page_stage import Stage, page_stage

BAND = {"decode_low_tps": 20.0, "decode_high_tps": 30.0}
DECODING = {
    "phase": "decode",
    "since_s": 60.0,
    "silent_s": 0.1,
    "tokens": 900,
    "decode_tps": 25.0,
    "recent_tps": 25.0,
    "told_at_ms": 1000,
}
STATES: list[tuple[str, dict[str, Any], dict[str, float] | None, int]] = [
    ("normal", {}, BAND, 1000),
    ("normal", {"recent_tps": 20.0}, BAND, 1000),
    ("slow", {"recent_tps": 19.9}, BAND, 1000),
    ("decode", {"recent_tps": 1.0}, None, 1000),  # nothing to hold it against
    ("decode", {"recent_tps": 1.0, "tokens": 7}, BAND, 1000),  # too few to tell
    # a slow model is not stuck: ten seconds are few of its gaps
    ("slow", {"decode_tps": 0.2, "recent_tps": 0.3, "silent_s": 10.0}, BAND, 1000),
    ("slow", {"recent_tps": 0.5, "silent_s": 4.9}, BAND, 1000),
    ("stuck", {"recent_tps": 0.0, "silent_s": 5.1}, BAND, 1000),
    ("stuck", {"recent_tps": 0.0, "silent_s": 5.1}, None, 1000),
    ("stuck", {"silent_s": 0.1}, BAND, 6000),  # told five seconds ago, and nothing since
    ("waiting", {"phase": "waiting", "silent_s": 0.0}, BAND, 99_000),
    ("delivery", {"phase": "delivery", "silent_s": 9.0}, BAND, 1000),
    ("whole", {"phase": "whole"}, BAND, 99_000),
]


@pytest.fixture(scope="module")
def judged(opened: Browser, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    cases = [[{**DECODING, **change}, band, now] for _, change, band, now in STATES]
    with page_stage(tmp_path_factory.mktemp("state")) as stage:
        opened.open(stage.page)
        found: list[dict[str, Any]] = opened.module(
            "judge", "given[0].map(([entry, band, now]) => it.stateOf(entry, band, now))", cases
        )
    return found


@pytest.mark.parametrize("i", range(len(STATES)))
def test_state(i: int, judged: list[dict[str, Any]]) -> None:
    assert judged[i]["state"] == STATES[i][0]


def test_slow_and_stuck_do_not_look_alike(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#link-state", "live")
    entries = [
        {**DECODING, "id": "a", "model": "m", "engine": "e", "recent_tps": 2.0, "silent_s": 0.4},
        {**DECODING, "id": "b", "model": "m", "engine": "e", "recent_tps": 0.0, "silent_s": 30.0},
    ]
    record = {"model": "m", "upstream": {"name": "e"}, "expected": BAND}
    browser.module(
        "running",
        "it.renderRunning(document.getElementById('recent'), {"
        " running: new Map(given[0].map(e => [e.id, {...e, told_at_ms: performance.now()}])),"
        " records: new Map([['r', given[1]]]), status: null })",
        entries,
        record,
    )

    slow, stuck = (card.text for card in browser.all("#recent .card"))
    assert "2 tok/s now" in slow
    assert "expected 20 to 30 tok/s" in slow
    assert "no token for 30" in stuck
    widths = browser.run(
        "return [...document.querySelectorAll('#recent .card')].map(c =>"
        " [c.dataset.state, getComputedStyle(c).borderTopStyle,"
        " Boolean(c.querySelector('.gauge-rate'))])"
    )
    assert widths == [["slow", "solid", True], ["stuck", "dashed", False]]


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (1.5 * 2**30, "bytes", "1.5 GiB"),
        (0.5, "ratio", "50 %"),
        (0, "ratio", "0 %"),
        (0.0004, "ratio", "under 0.1 %"),
        (90, "s", "90.0 s"),
        (150, "s", "2 min 30 s"),
        (12.345, "tokens/s", "12.3 tokens/s"),
        (None, "W", "\u2013 W"),
    ],
)
def test_values_of_evidence(
    value: float | None, unit: str, said: str, browser: Browser, stage: Stage
) -> None:
    browser.open(stage.page)

    assert browser.module("format", "it.measured(given[0], given[1])", value, unit) == said
