"""What is sent fits the machine, and what comes back is held against what was done."""

from typing import Any

import pytest

from slowtok.detectors.expectation.envelope import REFINE_AFTER
from slowtok.proxy.cli.demo import shots
from slowtok.proxy.cli.demo.shots import Outcome, Shot, ShotPace
from slowtok.proxy.cli.demo.stage import CONTEXT_TOKENS, SLOTS
from slowtok.proxy.stream.prompt_fingerprint import compare, fingerprint_prompt

LEARNING_CONTEXT_TOKENS = 1024  # the first bucket of the learned baseline


def pace(decode_tps: float = 140.0, prefill_tps: float = 450.0) -> ShotPace:
    return ShotPace(decode_tps=decode_tps, prefill_tps=prefill_tps, tokens_per_rule=18.0)


def record(verdict: str, *causes: str, informational: bool = False) -> dict[str, Any]:
    findings = [
        {"cause": c, "confidence": 0.9, "lost_ms": 1000, "informational": informational or None}
        for c in causes
    ]
    return {"verdict": verdict, "findings": findings}


@pytest.mark.parametrize(
    ("decode_tps", "tokens"),
    [
        pytest.param(140.0, 308, id="this takes 2.2 s"),
        pytest.param(5.0, 48, id="a slow machine still gives enough tokens to be judged"),
        pytest.param(5000.0, 1500, id="a fast one is not asked for a book"),
    ],
)
def test_the_answers_length_follows_the_machine(decode_tps: float, tokens: int) -> None:
    assert pace(decode_tps=decode_tps).tokens == tokens


@pytest.mark.parametrize(
    ("prefill_tps", "low_tokens", "high_tokens"),
    [
        pytest.param(450.0, 1200, 1220, id="an agent's prompt"),
        pytest.param(1000.0, 2500, 2520, id="faster: longer, so that it costs as much time"),
        pytest.param(20.0, 120, 140, id="so slow that 6 s have to do"),
        pytest.param(50_000.0, 4500, 4520, id="no more than a slot holds"),
    ],
)
def test_the_prompts_length_follows_the_machine(
    prefill_tps: float, low_tokens: int, high_tokens: int
) -> None:
    assert low_tokens <= pace(prefill_tps=prefill_tps).rules * 18 <= high_tokens


def test_the_longest_conversation_fits_into_a_slot() -> None:
    turns = shots.conversation(pace(prefill_tps=1e6).rules, "noon")

    longest = max(len(str(turn.body["messages"])) / 3.5 + turn.tokens for turn in turns)
    assert longest < CONTEXT_TOKENS / SLOTS


def healthy(tokens: int) -> list[Shot]:
    return [shots.healthy(n, tokens) for n in range(1, len(shots.TOPICS) + 1)]


def test_healthy_requests_are_enough_to_learn_from() -> None:
    sent = healthy(pace(decode_tps=5000.0).tokens)

    assert len(sent) >= REFINE_AFTER
    assert {(s.path, s.stream) for s in sent} == {
        (shots.CHAT, True),
        (shots.CHAT, False),
        (shots.TEXT, True),
    }
    assert all(s.tokens / 2 + 64 < LEARNING_CONTEXT_TOKENS for s in sent)


def test_every_request_can_be_repeated() -> None:
    sent = (*healthy(50), shots.starved(50), *shots.conversation(30, "noon"), *shots.rush(50))

    for shot in sent:
        assert shot.body["temperature"] == 0
        assert shot.body["seed"] == 1
        assert shot.body["ignore_eos"] is True


def test_the_conversation_keeps_its_beginning_until_the_time_comes_first() -> None:
    first, second, late = (
        fingerprint_prompt(turn.body) for turn in shots.conversation(30, "Fri Nov 20 07:00:00 2026")
    )
    assert first is not None
    assert second is not None
    assert late is not None

    kept, lost = compare(second, first, 1.0), compare(late, second, 1.0)
    assert kept.common_prefix_chars > 0.9 * first.chars
    assert lost.common_prefix_chars < 16
    assert lost.shared_ratio > 0.9


@pytest.mark.parametrize(
    ("found", "word"),
    [
        pytest.param(record("normal"), "normal", id="normal"),
        pytest.param(
            record("normal", "long-context", informational=True), "normal", id="informed, not slow"
        ),
        pytest.param(record("unknown"), "unknown", id="not judged"),
        pytest.param({"verdict": "slow"}, "unexplained", id="slow for no known cause"),
        pytest.param(record("slow", "queued", "batch-shared"), "queued", id="the first cause"),
        pytest.param({}, "unknown", id="passed through only"),
    ],
)
def test_an_outcome_is_one_word(found: dict[str, Any], word: str) -> None:
    outcome = Outcome(shot=shots.starved(50), record=found)

    assert outcome.word == word
    assert not outcome.as_expected


def test_an_outcome_is_right_when_the_provoked_cause_leads() -> None:
    assert Outcome(shot=shots.starved(50), record=record("slow", "host-contention")).as_expected


def warm_up(decode_tps: float, prefill_tps: float) -> dict[str, Any]:
    rate = {"decode_tps": decode_tps, "prefill_tps": prefill_tps}
    return {"rate": rate, "tokens": {"prompt": 240}}


def test_the_pace_is_the_best_that_was_seen() -> None:
    found = shots.read_pace([warm_up(140.0, 90.0), warm_up(20.0, 450.0)])

    assert found == ShotPace(
        decode_tps=140.0, prefill_tps=450.0, tokens_per_rule=240 / shots.WARM_UP_RULES
    )


@pytest.mark.parametrize(("seen_tps", "kept_tps"), [(20.0, 140.0), (150.0, 150.0)])
def test_a_slower_request_does_not_lower_the_pace(seen_tps: float, kept_tps: float) -> None:
    assert pace().raised_by(warm_up(seen_tps, 1.0)).decode_tps == kept_tps


def test_records_without_rates_give_no_pace() -> None:
    assert shots.read_pace([{"rate": {"decode_tps": 140.0}, "tokens": {"prompt": 240}}]) is None
    assert pace().raised_by({}) == pace()
