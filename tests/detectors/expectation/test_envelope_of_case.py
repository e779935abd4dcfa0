"""A case's expectation: what hardware and model should give, then what the baseline makes of it."""

from dataclasses import replace

import pytest

from fakes.baselines import with_baseline
from fakes.cases import healthy, with_tokens
from fakes.gpu_cases import gpu_case
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.expectation.envelope import expectation, with_expectation

LEARNED = Baseline(count=20, decode_tps=120.0, decode_p10_tps=115.0)


def test_a_baseline_that_comes_later_refines_as_one_that_was_there() -> None:
    fresh = with_expectation(gpu_case())
    later = with_baseline(fresh, LEARNED)

    assert later == with_expectation(replace(gpu_case(), baseline=LEARNED))
    assert later.envelope.decode != fresh.envelope.decode


@pytest.mark.parametrize(
    "case", [gpu_case(), healthy(), with_tokens(gpu_case(), drafted=100, accepted=50)]
)
def test_first_principles_need_no_more_than_these(case: Case) -> None:
    found = expectation(case.server, case.model, case.device, case.timeline.tokens, case.neighbours)

    assert found == with_expectation(replace(case, baseline=Baseline())).envelope


def test_nothing_learned_refines_nothing() -> None:
    fresh = with_expectation(gpu_case())

    assert with_baseline(fresh, Baseline()) == fresh


def test_drafted_tokens_keep_the_plain_expectation() -> None:
    drafting = with_expectation(with_tokens(gpu_case(), drafted=100, accepted=50))

    assert with_baseline(drafting, LEARNED).envelope == drafting.envelope
