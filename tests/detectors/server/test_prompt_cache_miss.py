from dataclasses import replace

import pytest

from fakes.cases import healthy, with_phases, with_prompt, with_server, with_tokens
from fakes.cases import prompt_cache_miss as firing
from slowtok.detectors.case import Case
from slowtok.detectors.finding import Finding, Missing
from slowtok.detectors.server import prompt_cache_miss


def lost_by_engine() -> Case:
    """A prompt that begins like an earlier one for 90 % of its length, of which nothing is left."""
    return with_prompt(firing(), common_prefix_chars=10_800, difference_message=9)


QUIET = [
    pytest.param(replace(firing(), prompt=None), id="the first prompt: nothing to miss yet"),
    pytest.param(healthy(), id="the common beginning came from the cache"),
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
        "first differs from an earlier one near character 64 of message 1, role system",
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
        "move times, counters",
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
        with_tokens(lost_by_engine(), cached=200),
        4.0 * 0.891,
        "--parallel",
        id="the engine kept next to none of it",
    ),
]
MISSING = [
    pytest.param(with_tokens(firing(), prompt=None), "number of prompt tokens", id="no usage"),
    pytest.param(
        with_tokens(firing(), cached=None),
        "prompt tokens taken from the cache",
        id="cached tokens not reported",
    ),
    pytest.param(with_phases(firing(), prefill_s=None), "prefill time", id="no prefill time"),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert prompt_cache_miss.detect(case) is None


@pytest.mark.parametrize(("case", "lost_s", "said"), FIRING)
def test_fires(case: Case, lost_s: float, said: str) -> None:
    finding = prompt_cache_miss.detect(case)

    assert finding is not None
    assert finding.phase == "prefill"
    assert finding.lost_s == pytest.approx(lost_s, rel=0.02)
    assert said in f"{finding.summary} {finding.remedy}"


@pytest.mark.parametrize(("case", "fact"), MISSING)
def test_names_the_missing_fact(case: Case, fact: str) -> None:
    with pytest.raises(Missing) as missing:
        prompt_cache_miss.detect(case)

    assert missing.value.fact == fact


def detected(case: Case) -> Finding:
    finding = prompt_cache_miss.detect(case)
    assert finding is not None
    return finding


def test_a_place_is_an_offset_and_never_text() -> None:
    finding = detected(firing())

    assert [e.name for e in finding.evidence] == [
        "tokens from the cache",
        "tokens computed again",
        "prefill",
        "first difference",
    ]
