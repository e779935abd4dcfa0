from dataclasses import replace

import pytest

from fakes.cases import with_envelope, with_phases, with_tokens
from fakes.cause_tests import found, missing_fact, quiet
from fakes.prompt_cases import oversized_prompt as firing
from slowtok.detectors.case.case import Case, Range
from slowtok.detectors.causes.prompt import oversized_prompt

QUIET = [
    pytest.param(with_tokens(firing(), cached=21_000), id="most of it came from the cache"),
    pytest.param(with_phases(firing(), prefill_s=3.0), id="long, and read in no time"),
    pytest.param(with_phases(firing(), total_s=900.0), id="most of the time is the answer's"),
    pytest.param(
        firing(system_chars=2000, tools_chars=0, last_user_chars=88_000),
        id="a document that is to be read",
    ),
    pytest.param(
        with_envelope(firing(), prefill=Range(low=900.0, high=2000.0), expected_prefill_tps=1200.0),
        id="read slowly: slow-prefill",
    ),
    pytest.param(with_tokens(firing(), prompt=None), id="no usage"),
]


test_quiet = quiet(oversized_prompt, QUIET)


@pytest.mark.parametrize(
    ("case", "whose"),
    [
        pytest.param(firing(), "(60 % tools, 39 % instructions)", id="tools"),
        pytest.param(replace(firing(), prompt_parts=None), "tokens, at 192", id="not known whose"),
    ],
)
def test_fires(case: Case, whose: str) -> None:
    finding = found(oversized_prompt, case)

    assert finding.informational
    assert whose in finding.summary
    assert "22,500 prompt tokens" in finding.summary


def test_names_the_missing_fact() -> None:

    assert missing_fact(oversized_prompt, with_phases(firing(), prefill_s=None)) == "prefill time"
