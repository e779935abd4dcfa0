from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_phases, with_server
from fakes.cause_tests import found, missing_fact, quiet
from fakes.prompt_cases import engine_regression as firing
from slowtok.detectors.case.case import Case, Neighbours
from slowtok.detectors.causes.server import engine_regression
from slowtok.detectors.diagnosis.diagnose import diagnose


def before(case: Case, **history: Any) -> Case:
    return replace(case, history=replace(case.history, **history))


QUIET = [
    pytest.param(firing(rate_tps=140.0), id="another build, and as fast"),
    pytest.param(
        before(firing(rate_tps=110.0), other_version_count=1), id="a little less than one request"
    ),
    pytest.param(with_server(firing(), version="b8322"), id="the same build"),
    pytest.param(with_server(firing(), version=None), id="which build it is, is not known"),
    pytest.param(with_server(firing(), speculative=True), id="drafts: other text, other rates"),
    pytest.param(
        replace(firing(), neighbours=Neighbours(decode_mean=1.0, decode_max=1)), id="others beside"
    ),
]


test_quiet = quiet(engine_regression, QUIET)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_fires(count: int) -> None:
    finding = found(engine_regression, before(firing(), other_version_count=count))

    assert finding.phase == "decode"
    assert finding.lost_s == pytest.approx(449 / 80 * (1 - 80 / 150))
    assert "with version b8322 of the engine; it runs b8323 now" in finding.summary
    assert "Go back to b8322" in finding.remedy


def test_it_makes_a_decode_slow_that_its_band_lets_through() -> None:
    """80 tokens/s lie within 76 to 210."""
    found = diagnose(firing())

    assert (found.verdict, found.phase, list(found.findings)) == (
        "slow",
        "decode",
        ["engine-regression"],
    )


def test_names_the_missing_fact() -> None:

    assert missing_fact(engine_regression, with_phases(firing(), decode_tps=None)) == "decode rate"
