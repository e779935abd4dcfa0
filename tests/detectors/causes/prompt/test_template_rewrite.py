from dataclasses import replace

import pytest

from fakes.cases import with_prompt, with_server, with_tokens
from fakes.cause_tests import fires, found, missing_fact, quiet
from fakes.prompt_cases import changed_late, grown, with_state
from fakes.prompt_cases import template_rewrite as firing
from slowtok.detectors.case.case import Case, PromptParts
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.causes.prompt import template_rewrite


def beside_strangers(before: Case) -> Case:
    """The case at an engine that others use past the proxy."""
    return replace(before, activity=EngineActivity(span_s=9.0, alone=False))


QUIET = [
    pytest.param(grown(cached=2500), id="only the last answer was computed again"),
    pytest.param(grown(cached=2480), id="a block of the cache at its end"),
    pytest.param(changed_late(cached=300), id="the client changed an earlier message"),
    pytest.param(grown(cached=0), id="nothing is left, and no template is known to do that"),
    pytest.param(grown(cached=300, others_since=1), id="another conversation may have taken it"),
    pytest.param(with_state(grown(cached=0)), id="a state that cannot be rewound"),
    pytest.param(beside_strangers(grown(cached=300)), id="others who are not seen here"),
    pytest.param(
        with_server(grown(cached=300), context_tokens=2800), id="the context is full: it was cut"
    ),
    pytest.param(with_server(grown(cached=300), prefix_caching=False), id="the cache is off"),
    pytest.param(
        grown(cached=1500, image_chars=9000, common_image_chars=0),
        id="an image that takes more tokens than was thought",
    ),
]
FIRING = [
    pytest.param(firing(), "thoughts out of earlier turns", "--chat-template-file", id="thoughts"),
    pytest.param(
        with_server(grown(cached=0), template_habits=("clock",)),
        "date or time",
        "as they were",
        id="clock",
    ),
    pytest.param(
        grown(cached=1500), "differently from before", "reasoning_content", id="not known"
    ),
    pytest.param(
        replace(
            with_server(grown(cached=60), template_habits=("tools-last",)),
            prompt_parts=PromptParts(chars=12_000, messages=9, tools_chars=6000),
        ),
        "puts the tools before the last question",
        "as they were",
        id="Mistral's tools",
    ),
    pytest.param(
        with_server(with_state(grown(cached=0)), kind="openai"),
        "differently from before",
        "preserve_thinking",
        id="Qwen3#1826: MLX, whose states cannot be rewound either",
    ),
    pytest.param(
        grown(cached=1500, others_since=1, others_common_chars=900),
        "differently from before",
        "template",
        id="more is left than the other conversation shares",
    ),
]


test_quiet = quiet(template_rewrite, QUIET)
test_fires = fires(template_rewrite, "summary remedy", FIRING, phase="prefill")


def test_says_that_the_client_changed_nothing() -> None:
    assert "the client only added messages at the end" in found(template_rewrite, firing()).summary


def test_a_place_that_did_not_change_is_no_evidence() -> None:
    finding = found(template_rewrite, with_prompt(firing(), first_difference=0))

    assert "first difference" not in [e.name for e in finding.evidence]


def test_names_the_missing_fact() -> None:

    assert (
        missing_fact(template_rewrite, with_tokens(firing(), cached=None))
        == "prompt tokens taken from the cache"
    )
