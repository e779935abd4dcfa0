from dataclasses import replace

from fakes.cases import healthy
from fakes.cause_tests import found
from fakes.prompt_cases import retried_request as firing
from slowtok.detectors.case.case import Repeat
from slowtok.detectors.causes.client import retried_request


def test_a_prompt_that_nobody_gave_up_is_quiet() -> None:
    assert retried_request.detect(healthy()) is None


def test_a_further_try_tells_what_the_others_took() -> None:
    finding = found(retried_request, firing())

    assert finding.informational
    assert "asked 2 times just before" in finding.summary
    assert "430.0 s more" in finding.summary


def test_how_the_last_try_ended_is_told() -> None:
    once = replace(healthy(), repeat=Repeat(count=1, spent_s=60.0, ended="timeout"))
    finding = found(retried_request, once)

    assert "asked once just before and was cut short (it timed out)" in finding.summary
