"""Slower than before, and not slow."""

from dataclasses import replace

import pytest

from fakes.cases import healthy, with_phases, with_tokens
from slowtok.detectors.case.case import Baseline, Case, History, Neighbours
from slowtok.detectors.diagnosis.diagnose import drift_of


def drifted(before: Case | None = None, *, week_ago_tps: float | None = 182.0) -> Case:
    """149 tokens/s where there were 182."""
    return replace(before or healthy(), history=History(week_ago_decode_tps=week_ago_tps))


def test_drift_is_said_with_its_numbers() -> None:
    assert drift_of(drifted()) == (
        "18 % slower than before for the same model at such a context "
        "(149.3 tokens/s, 182.0 the days before)"
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(healthy(), id="nothing was seen before"),
        pytest.param(drifted(week_ago_tps=160.0), id="7 %"),
        pytest.param(drifted(week_ago_tps=140.0), id="faster than before"),
        pytest.param(drifted(with_phases(healthy(), decode_tps=None)), id="no rate"),
        pytest.param(drifted(with_phases(healthy(), decode_s=1.5)), id="too short a decode"),
        pytest.param(drifted(with_tokens(healthy(), completion=20)), id="too few tokens"),
        pytest.param(
            drifted(replace(healthy(), neighbours=Neighbours(decode_mean=0.4))), id="not alone"
        ),
        pytest.param(
            drifted(replace(healthy(), baseline=Baseline(count=40, decode_p10_tps=145.0))),
            id="one healthy request in ten is slower than this",
        ),
    ],
)
def test_no_drift(case: Case) -> None:
    assert drift_of(case) is None
