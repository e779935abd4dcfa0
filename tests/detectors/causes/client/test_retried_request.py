from dataclasses import replace

from fakes.cases import healthy
from fakes.prompt_cases import retried_request as firing
from slowtok.detectors.case.case import Repeat
from slowtok.detectors.causes.client import retried_request
from slowtok.detectors.diagnosis.diagnose import diagnose


def test_a_prompt_that_nobody_gave_up_is_quiet() -> None:
    assert retried_request.detect(healthy()) is None


def test_a_further_try_tells_what_the_others_took() -> None:
    finding = retried_request.detect(firing())

    assert finding is not None
    assert finding.informational
    assert "asked 2 times just before" in finding.summary
    assert "430.0 s more" in finding.summary


def test_how_the_last_try_ended_is_told() -> None:
    once = replace(healthy(), repeat=Repeat(count=1, spent_s=60.0, ended="timeout"))
    finding = retried_request.detect(once)

    assert finding is not None
    assert "asked once just before and was cut short (its time was up)" in finding.summary


def test_it_makes_nothing_slow() -> None:
    found = diagnose(firing())

    assert found.verdict == "normal"
    assert "retried-request" in found.findings
