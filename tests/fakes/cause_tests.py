"""The tests that every cause has, made of the tables of cases in its test file.

`test_quiet = quiet(queued, QUIET)` is one test for each row of the table. A row is a
`pytest.param`, whose id is the reason why the detector speaks or does not.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import pytest

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import UNNAMED, Detector, Finding, Missing


class Expected(TypedDict, total=False):
    """What a row of `fires` says of the finding; the texts are contained in the finding's."""

    phase: Phase
    lost_s: float
    confidence: float
    summary: str
    remedy: str
    said: str  # in either of them


def found(detector: Detector, case: Case) -> Finding:
    """Return the finding in a case in which the cause has to be found."""
    finding = detector.detect(case)
    assert finding is not None, "ruled out"
    assert finding is not UNNAMED, "not named"
    return finding


def missing_fact(detector: Detector, case: Case) -> str:
    """Return the fact that the detector asks for in a case in which one has to be missing."""
    with pytest.raises(Missing) as missing:
        detector.detect(case)
    return missing.value.fact


def quiet(detector: Detector, cases: Iterable[Any]) -> Callable[[Case], None]:
    """Return the test that these cases rule the cause out. Rows of a case."""

    @pytest.mark.parametrize("case", cases)
    def test(case: Case) -> None:
        assert detector.detect(case) is None

    return test


def unnamed(detector: Detector, cases: Iterable[Any]) -> Callable[[Case], None]:
    """Return the test that the cause is neither named nor ruled out. Rows of a case."""

    @pytest.mark.parametrize("case", cases)
    def test(case: Case) -> None:
        assert detector.detect(case) is UNNAMED

    return test


def lacks(detector: Detector, cases: Iterable[Any]) -> Callable[[Case, str], None]:
    """Return the test that the missing fact is named. Rows of a case and the fact."""

    @pytest.mark.parametrize(("case", "fact"), cases)
    def test(case: Case, fact: str) -> None:
        assert missing_fact(detector, case) == fact

    return test


def fires(
    detector: Detector,
    columns: str,
    cases: Iterable[Any],
    *,
    phase: Phase | None = None,
    rel: float = 0.02,
    informational: bool = False,
) -> Callable[[Case, Expected], None]:
    """Return the test that the cause is found. Rows of a case and of what `columns` name.

    The columns are those of `Expected`, `lost_s` within `rel`; `phase` is that of all rows.
    """
    rows = [
        pytest.param(
            row.values[0], dict(zip(columns.split(), row.values[1:], strict=True)), id=row.id
        )
        for row in cases
    ]

    @pytest.mark.parametrize(("case", "expected"), rows)
    def test(case: Case, expected: Expected) -> None:
        finding = found(detector, case)

        assert finding.phase == expected.get("phase", phase or finding.phase)
        assert finding.lost_s == pytest.approx(expected.get("lost_s", finding.lost_s), rel=rel)
        assert finding.confidence == expected.get("confidence", finding.confidence)
        assert finding.informational is informational
        assert ("{lost}" in finding.summary) is not informational
        assert expected.get("summary", "") in finding.summary
        assert expected.get("remedy", "") in finding.remedy
        assert expected.get("said", "") in f"{finding.summary} {finding.remedy}"

    return test
