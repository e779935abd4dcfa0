from dataclasses import replace

import pytest

from fakes.cases import healthy, with_prompt, with_server, with_tokens
from fakes.prompt_cases import changed_late, grown, with_state
from fakes.prompt_cases import template_rewrite as firing
from slowtok.detectors.case.case import Case, PromptParts
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.causes.server import template_rewrite


def beside_strangers(before: Case) -> Case:
    """The case at an engine that others use past the proxy."""
    return replace(before, activity=EngineActivity(span_s=9.0, alone=False))


QUIET = [
    pytest.param(healthy(), id="all of the earlier prompt came from the cache"),
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
    pytest.param(grown(cached=1500), "otherwise than before", "reasoning_content", id="not known"),
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
        "otherwise than before",
        "preserve_thinking",
        id="Qwen3#1826: MLX, whose states cannot be rewound either",
    ),
    pytest.param(
        grown(cached=1500, others_since=1, others_common_chars=900),
        "otherwise than before",
        "template",
        id="more is left than the other conversation shares",
    ),
]


@pytest.mark.parametrize("case", QUIET)
def test_quiet(case: Case) -> None:
    assert template_rewrite.detect(case) is None


@pytest.mark.parametrize(("case", "why", "remedy"), FIRING)
def test_fires(case: Case, why: str, remedy: str) -> None:
    finding = template_rewrite.detect(case)

    assert finding is not None
    assert finding.phase == "prefill"
    assert "only grew" in finding.summary
    assert why in finding.summary
    assert remedy in finding.remedy


def test_a_place_that_did_not_change_is_no_evidence() -> None:
    finding = template_rewrite.detect(with_prompt(firing(), first_difference=0))

    assert finding is not None
    assert "first difference" not in [e.name for e in finding.evidence]


def test_names_the_missing_fact() -> None:
    with pytest.raises(Missing) as missing:
        template_rewrite.detect(with_tokens(firing(), cached=None))

    assert missing.value.fact == "prompt tokens taken from the cache"
