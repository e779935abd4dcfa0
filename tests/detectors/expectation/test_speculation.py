"""Speculative decoding: what counts as drafts, and what is expected then."""

from dataclasses import replace

import pytest

from fakes.cases import with_server, with_tokens
from fakes.gpu_cases import PROMPT, gpu_case
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.expectation.envelope import with_expectation
from slowtok.detectors.expectation.speculation import Drafts, drafts_of, speculates


def told(drafted: int | None, accepted: int | None) -> Case:
    return with_tokens(gpu_case(), drafted=drafted, accepted=accepted)


def counted(*, alone: bool | None, prompt_tokens: int | None = None) -> Case:
    activity = EngineActivity(
        span_s=3.0,
        alone=alone,
        running_max=1,
        prompt_tokens=prompt_tokens,
        drafted=100,
        accepted=40,
    )
    return replace(told(None, None), activity=activity)


@pytest.mark.parametrize(
    ("case", "drafts"),
    [
        pytest.param(told(None, None), None, id="nothing said"),
        pytest.param(told(0, 0), None, id="nothing drafted"),
        pytest.param(told(100, None), None, id="not told what became of them"),
        pytest.param(told(100, 40), Drafts(drafted=100, accepted=40), id="the reply's own"),
        pytest.param(told(100, 140), Drafts(drafted=100, accepted=100), id="never more than all"),
        pytest.param(counted(alone=True), Drafts(drafted=100, accepted=40), id="counted, alone"),
        pytest.param(counted(alone=False), None, id="counted for several"),
        pytest.param(counted(alone=None), None, id="counted, perhaps for several"),
        pytest.param(
            counted(alone=None, prompt_tokens=PROMPT),
            Drafts(drafted=100, accepted=40),
            id="a gauge is late, and no other prompt was counted",
        ),
        pytest.param(
            counted(alone=None, prompt_tokens=PROMPT + 7), None, id="another prompt was counted"
        ),
        pytest.param(counted(alone=False, prompt_tokens=PROMPT), None, id="others were there"),
    ],
)
def test_drafts_of(case: Case, drafts: Drafts | None) -> None:
    assert drafts_of(case) == drafts


def test_a_reply_that_was_drafted_says_so_where_no_flag_does() -> None:
    assert speculates(told(100, 40))
    assert speculates(with_server(told(None, None), speculative=True))
    assert not speculates(told(0, 0))


def test_what_other_text_gave_does_not_narrow_the_band() -> None:
    learned = Baseline(count=20, decode_tps=150.0, decode_p10_tps=145.0)
    plain = with_expectation(replace(told(None, None), baseline=learned)).envelope
    drafting = with_expectation(replace(told(100, 40), baseline=learned)).envelope

    assert plain.decode is not None
    assert drafting.decode is not None
    assert plain.ceiling_tps is not None
    assert plain.decode.low > drafting.decode.low
    assert drafting.expected_tps == drafting.roofline_tps
    assert drafting.decode.high > plain.ceiling_tps
    assert drafting.ceiling_tps is None
