from dataclasses import replace
from typing import Any, get_args

import pytest

from fakes.cases import (
    healthy,
    with_envelope,
    with_phases,
    with_prompt,
    with_server,
    with_tokens,
)
from fakes.cases import prompt_cache_miss as firing
from fakes.cause_tests import fires, found, lacks, quiet
from slowtok.detectors.case.case import Case, DifferenceKind, History, ModelLoad
from slowtok.detectors.case.engine import EngineActivity, ModelFacts
from slowtok.detectors.causes.prompt import prompt_cache_miss
from slowtok.detectors.diagnosis.diagnose import diagnose


def lost_by_engine() -> Case:
    """A prompt that begins like an earlier one for 90 % of its length, of which nothing is left."""
    return with_prompt(firing(), common_prefix_chars=10_800, difference_message=9)


def changed(kind: str | None, **prompt: Any) -> Case:
    """The client changed something of that kind at the beginning."""
    return with_prompt(firing(), difference_kind=kind, **prompt)


def counted(before: Case, *, cached: int, alone: bool) -> Case:
    """The reply says nothing of the cache, the engine's counters do."""
    activity = EngineActivity(span_s=9.0, alone=alone, cached_tokens=cached)
    return replace(with_tokens(before, cached=None), activity=activity)


def tale_3400() -> Case:
    """tale-project/tale#3400: 28k tokens, 16,276 from the cache each turn, 74 to 93 s."""
    slow = with_phases(with_tokens(firing(), prompt=28_000, cached=16_276), prefill_s=83.0)
    return with_prompt(
        slow,
        chars=100_000,
        common_prefix_chars=64,
        shared_ratio=0.99,
        first_difference=64,
        difference_kind="attribution-header",
    )


def mlx_vlm_999() -> Case:
    """Blaizzy/mlx-vlm#999: 0 of 5872 tokens from the cache, 9.7 s per call instead of 0.7."""
    slow = with_phases(with_tokens(lost_by_engine(), prompt=5900, cached=0), prefill_s=9.7)
    slow = with_prompt(slow, common_prefix_chars=11_940)
    return with_server(slow, kind="openai", context_tokens=None)


def untold(*, prefill_s: float, expected_tps: float, ms_per_token: float = 6.7) -> Case:
    """An engine that does not say what it took from its cache, and the rate that it should reach.

    2,800 tokens of prompt, of which an earlier one shares nine tenths.
    """
    slow = with_tokens(lost_by_engine(), cached=None)
    slow = with_envelope(slow, prefill=None, expected_prefill_tps=expected_tps)
    return with_phases(slow, prefill_s=prefill_s, decode_tps=1000 / ms_per_token)


def with_best_prefill(before: Case, tps: float) -> Case:
    """A healthy past in which prompts were read at up to that rate."""
    return with_envelope(
        replace(before, history=replace(before.history, best_prefill_tps=tps)),
        prefill=None,
        expected_prefill_tps=None,
    )


QUIET = [
    pytest.param(
        untold(prefill_s=2.1, expected_tps=700.0),
        id="not told, and too quick to have computed all of it",
    ),
    pytest.param(
        replace(lost_by_engine(), history=History(loads=(ModelLoad(age_s=10.0),))),
        id="the model was loaded after the earlier prompt",
    ),
    pytest.param(
        replace(lost_by_engine(), history=History(loads=(ModelLoad(age_s=10.0, load_s=4.0),))),
        id="and another prompt waited for that load",
    ),
    pytest.param(
        with_prompt(lost_by_engine(), others_since=3), id="others took the slots: cache-evicted"
    ),
    pytest.param(
        replace(
            with_prompt(lost_by_engine(), others_since=0), model=ModelFacts(kv_window_tokens=4096)
        ),
        id="llama.cpp#14157: a sliding window: cache-not-rewindable",
    ),
    pytest.param(
        with_tokens(with_prompt(lost_by_engine(), previous_chars=10_800), cached=300),
        id="it only grew: template-rewrite",
    ),
    pytest.param(
        with_tokens(
            with_prompt(firing(), common_prefix_chars=5000, previous_chars=5000, shared_ratio=0.95),
            cached=1170,
        ),
        id="it only grew, by text that stood in it before (the same file, read again)",
    ),
    pytest.param(
        with_tokens(with_prompt(changed("text"), common_prefix_chars=9000), cached=2100),
        id="a little text in common behind a change: another conversation",
    ),
    pytest.param(
        with_tokens(
            with_prompt(lost_by_engine(), image_chars=4000, common_image_chars=0), cached=1600
        ),
        id="an image at the end that takes more tokens than was thought",
    ),
    pytest.param(counted(lost_by_engine(), cached=2500, alone=True), id="counters: from the cache"),
    pytest.param(replace(firing(), prompt=None), id="the first prompt: nothing to miss yet"),
    pytest.param(
        with_tokens(healthy(), cached=120), id="the cache lacks a part of it: blocks, a template"
    ),
    pytest.param(with_prompt(firing(), shared_ratio=0.1), id="another conversation"),
    pytest.param(
        with_prompt(firing(), shared_ratio=0.3, common_prefix_chars=2000),
        id="the same system prompt, another question",
    ),
    pytest.param(
        with_tokens(firing(), cached=2700), id="the engine kept what the prompts do not show"
    ),
    pytest.param(with_tokens(firing(), prompt=50, cached=0), id="a prompt of one block"),
    pytest.param(
        with_tokens(with_prompt(healthy(), common_prefix_chars=550), prompt=100, cached=0),
        id="a common beginning of less than a block",
    ),
    pytest.param(
        with_server(lost_by_engine(), uptime_s=10.0),
        id="the engine started after the earlier prompt",
    ),
    pytest.param(
        with_server(lost_by_engine(), slept=True),
        id="the engine slept: its cache went with the model",
    ),
]
FIRING = [
    pytest.param(
        firing(),
        4.0 * 0.98,
        "the text changed near character 64 of message 1 (role system)",
        id="the client changed the beginning",
    ),
    pytest.param(
        with_prompt(firing(), granularity_chars=1),
        4.0 * 0.98,
        "at character 64 of message 1",
        id="the place is exact",
    ),
    pytest.param(
        with_prompt(with_tokens(firing(), cached=840), common_prefix_chars=3600),
        4.0 * 0.971,
        "move whatever changes to its end",
        id="the change is a third into the prompt",
    ),
    pytest.param(
        with_prompt(firing(), first_difference=None, difference_message=None),
        4.0 * 0.98,
        "early on",
        id="the place is not known",
    ),
    pytest.param(
        lost_by_engine(),
        4.0 * 0.9,
        "the engine no longer had them in its cache",
        id="the engine lost a common beginning",
    ),
    pytest.param(
        replace(lost_by_engine(), history=History(loads=(ModelLoad(age_s=30.0, load_s=9.9),))),
        4.0 * 0.9,
        "the engine no longer had them in its cache",
        id="the earlier prompt itself had waited for the load",
    ),
    pytest.param(
        with_tokens(lost_by_engine(), cached=200),
        4.0 * 0.891,
        "--parallel",
        id="the engine kept next to none of it",
    ),
    pytest.param(
        untold(prefill_s=4.0, expected_tps=700.0),
        4.0 * 0.9,
        "the engine no longer had them in its cache",
        id="not told, and slow enough to have computed all of it (Ollama before 0.34)",
    ),
    pytest.param(tale_3400(), 83.0 * 0.975, "CLAUDE_CODE_ATTRIBUTION_HEADER=0", id="tale#3400"),
    pytest.param(mlx_vlm_999(), 9.7 * 0.995, "update it", id="mlx-vlm#999"),
    pytest.param(
        with_tokens(changed("time"), cached=None),
        4.0 * 0.98,
        "a date or time changes near character 64",
        id="the prompts alone tell it",
    ),
    pytest.param(
        changed("tools-order", difference_role="tools", common_prefix_chars=2000),
        4.0 * 0.98,
        "sort its tools by name",
        id="the order of the tools, which some templates put first",
    ),
    pytest.param(
        counted(lost_by_engine(), cached=0, alone=True), 4.0 * 0.9, "no longer had", id="counters"
    ),
    pytest.param(
        with_best_prefill(counted(lost_by_engine(), cached=0, alone=True), 400.0),
        4.0 * 0.9,
        "no longer had",
        id="counters, at 700 tokens/s where 400 were the best so far",
    ),
    pytest.param(
        with_server(with_tokens(lost_by_engine(), cached=None), kind="vllm", prefix_caching=False),
        4.0 * 0.9,
        "prefix cache turned off",
        id="vLLM was told to keep nothing",
    ),
    pytest.param(
        with_tokens(changed("time"), cached=2100),
        4.0 * 644 / 700,
        "a date or time changes",
        id="a fifth of the prompt, which is nearly all that was computed",
    ),
    pytest.param(
        with_server(
            with_prompt(
                with_tokens(firing(), prompt=30_000, cached=6400), common_prefix_chars=2560
            ),
            context_tokens=65_536,
        ),
        4.0 * 23_000 / 23_600,
        "the text changed",
        id="6,400 of 30,000 tokens came from the cache",
    ),
    pytest.param(
        with_tokens(lost_by_engine(), cached=1500),
        4.0 * 1020 / 1300,
        "no longer had",
        id="the engine kept a part of the beginning",
    ),
    pytest.param(
        with_tokens(with_server(lost_by_engine(), context_tokens=2800), cached=300),
        4.0 * 2220 / 2500,
        "the prompt fills the context",
        id="the context is full, so that the beginning was cut",
    ),
]
MISSING = [
    pytest.param(
        counted(lost_by_engine(), cached=0, alone=False),
        "prompt tokens taken from the cache",
        id="counters of several requests",
    ),
    pytest.param(
        with_phases(
            with_best_prefill(counted(lost_by_engine(), cached=0, alone=True), 400.0),
            prefill_s=0.8,
        ),
        "prompt tokens taken from the cache",
        id="vllm-ascend#16639: a counter of zero, read 8 times faster than ever",
    ),
    pytest.param(with_tokens(firing(), prompt=None), "number of prompt tokens", id="no usage"),
    pytest.param(
        with_tokens(lost_by_engine(), cached=None),
        "prompt tokens taken from the cache",
        id="cached tokens not reported",
    ),
    pytest.param(
        untold(prefill_s=4.0, expected_tps=700.0, ms_per_token=40.0),
        "prompt tokens taken from the cache",
        id="not told, and decode is slow as well: prefill may be",
    ),
    pytest.param(
        with_phases(untold(prefill_s=4.0, expected_tps=700.0), source="stream"),
        "prompt tokens taken from the cache",
        id="not told, and the wait may be a queue",
    ),
    pytest.param(with_phases(firing(), prefill_s=None), "prefill time", id="no prefill time"),
]


test_quiet = quiet(prompt_cache_miss, QUIET)
test_fires = fires(prompt_cache_miss, "lost_s said", FIRING, phase="prefill")
test_names_the_missing_fact = lacks(prompt_cache_miss, MISSING)


@pytest.mark.parametrize("kind", get_args(DifferenceKind))
def test_every_kind_of_difference_has_its_own_remedy(kind: str) -> None:
    text = found(prompt_cache_miss, changed(None))
    finding = found(prompt_cache_miss, changed(kind))

    assert (finding.remedy == text.remedy) == (kind == "text")
    assert finding.summary.isascii()
    assert finding.remedy.isascii()
    assert finding.remedy.endswith(".")


def test_what_the_engine_says_counts_for_more() -> None:
    unsure = found(prompt_cache_miss, with_tokens(firing(), cached=None))

    assert found(prompt_cache_miss, firing()).confidence > unsure.confidence
    assert found(prompt_cache_miss, untold(prefill_s=4.0, expected_tps=700.0)).confidence == 0.65


@pytest.mark.parametrize(
    ("case", "is_offered"),
    [
        (changed("trimmed"), True),
        (changed("inserted"), False),  # it looks for what stands there, and finds nothing
        (changed("trimmed", image_chars=100), False),
        (with_server(changed("trimmed"), kind="vllm"), False),
        (replace(changed("trimmed"), model=ModelFacts(state_bytes=1e6)), False),
    ],
)
def test_llama_server_can_move_what_stands_behind_messages_that_were_left_out(
    case: Case, is_offered: bool
) -> None:
    assert ("--cache-reuse 256" in found(prompt_cache_miss, case).remedy) == is_offered


def test_the_remedy_says_what_a_turn_would_gain() -> None:
    found = diagnose(firing()).findings["prompt-cache-miss"]

    assert "Each such turn would be about 3.9 s faster." in found.remedy


def test_a_place_is_an_offset_and_never_text() -> None:
    finding = found(prompt_cache_miss, firing())

    assert [e.name for e in finding.evidence] == [
        "tokens from the cache",
        "tokens computed again",
        "prefill",
        "first difference",
    ]
