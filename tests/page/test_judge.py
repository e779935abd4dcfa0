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
READING = {"tokens": 4096, "about_tokens": 12000, "tps": 500.0, "eta_s": 15.8, "source": "slots"}
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
    ("whole", {"phase": "whole", "tokens": None}, BAND, 99_000),
    ("slow", {"phase": "whole", "recent_tps": None, "decode_tps": 2.0}, BAND, 1000),
    ("whole", {"phase": "whole", "recent_tps": None, "decode_tps": 2.0}, None, 1000),
    ("stuck", {"phase": "whole", "recent_tps": None, "silent_s": 30.0}, BAND, 1000),
    ("queue", {"phase": "queue", "silent_s": None}, BAND, 99_000),
    # a slow prefill is not stuck: half a minute is few of its steps
    ("prefill", {"phase": "prefill", "prefill": {**READING, "silent_s": 30, "step_s": 4}}, BAND, 1),
    ("prefill", {"phase": "prefill", "prefill": {**READING, "silent_s": 300}}, BAND, 1000),
    ("stuck", {"phase": "prefill", "prefill": {**READING, "silent_s": 41, "step_s": 4}}, BAND, 1),
    ("stuck", {"phase": "whole", "prefill": {**READING, "silent_s": 9, "step_s": 0.1}}, BAND, 1),
    ("waiting", {"phase": "waiting", "prefill": {"eta_s": 0.0}}, BAND, 99_000),
]


@pytest.fixture(scope="module")
def judged(opened: Browser, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    cases = [
        [{k: v for k, v in (DECODING | change).items() if v is not None}, band, now]
        for _, change, band, now in STATES
    ]
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


WAITING: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"phase": "prefill", "prefill": {**READING, "silent_s": 1.0, "step_s": 4.0}},
        ["4,096 of about 12,000 prompt tokens read", "at 500 tok/s: about 16 s to go"],
    ),
    (
        {"phase": "prefill", "prefill": {**READING, "silent_s": 99.0, "step_s": 4.0}},
        ["its prompt is not read on", "nothing more for 99", "a step took 4.00 s before"],
    ),
    (
        {"phase": "prefill", "prefill": {**READING, "eta_s": 0.0, "silent_s": 9.0, "step_s": 4.0}},
        ["longer than that by now"],
    ),
    (
        {"phase": "prefill", "prefill": {"tokens": 0, "silent_s": 1.0, "source": "estimate"}},
        ["0 prompt tokens read", "too early for a rate", "not known yet"],
    ),
    (
        {"phase": "waiting", "prefill": {"about_tokens": 900, "tps": 90.0, "eta_s": 9.5}},
        ["about 10 s to go", "Estimate: about 900 prompt tokens, at 90 tok/s"],
    ),
    (
        {"phase": "queue", "queue_slots": 4, "prefill": {"about_tokens": 900, "tps": 90.0}},
        ["waiting for a slot", "All 4 slots of the engine work", "about 10 s (estimate)"],
    ),
    (
        {"phase": "whole", "tokens": 40, "remaining_tokens": 60, "decode_tps": 25.0,
         "silent_s": 0.1},
        ["25 tok/s so far", "40 tokens, at most 60 to come", "at most 3 s to go"],
    ),
    (
        {**DECODING, "recent_tps": 20.0, "remaining_tokens": 300},
        ["20 tok/s now", "at most 15 s to go", "900 tokens or more, at most 300 to come"],
    ),
    ({"phase": "waiting"}, ["waiting for 12"]),
]  # fmt: skip


def test_what_a_request_is_at_is_said_in_words(browser: Browser, stage: Stage) -> None:
    browser.open(stage.page)
    browser.says("#link-state", "live")
    given = [
        {"id": str(i), "model": "m", "engine": "e", "since_s": 12.0, "sent_s": 12.0, **entry}
        for i, (entry, _) in enumerate(WAITING)
    ]
    browser.module(
        "running",
        "it.renderRunning(document.getElementById('recent'), {"
        " running: new Map(given[0].map(e => [e.id, {...e, told_at_ms: performance.now()}])),"
        " records: new Map(), status: null })",
        given,
    )

    cards = [card.text for card in browser.all("#recent .card")]
    missing = [
        (words, card)
        for card, (_, wanted) in zip(cards, WAITING, strict=True)
        for words in wanted
        if words not in card
    ]
    assert missing == []
    assert sum("to go" in card for card in cards) == 4  # of the others it is not known
    assert browser.overflow() == []


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
