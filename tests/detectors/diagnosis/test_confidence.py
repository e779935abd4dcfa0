"""What raises and lowers the confidence in a finding."""

import pytest

from slowtok.detectors.case.case import History
from slowtok.detectors.case.finding import Finding
from slowtok.detectors.diagnosis.confidence import adjusted

FINDING = Finding(phase="decode", confidence=0.8, lost_s=1.0, summary="s", remedy="r", evidence=())


@pytest.mark.parametrize(
    ("cause", "misfit", "history", "confidence"),
    [
        ("clocks-stuck", 0.0, History(), 0.8),
        ("clocks-stuck", -3.0, History(), 0.8),
        ("clocks-stuck", 1.0, History(), 0.4),
        ("clocks-stuck", 0.5, History(), 0.6),
        ("clocks-stuck", 0.0, History(judged_recently=1), 0.8),
        ("clocks-stuck", 0.0, History(judged_recently=3), 0.68),
        ("clocks-stuck", 0.0, History(judged_recently=3, causes_recently=("clocks-stuck",)), 0.8),
        (
            "clocks-stuck",
            0.0,
            History(judged_recently=3, causes_recently=("clocks-stuck",) * 2),
            0.86,
        ),
        ("queued", 0.0, History(judged_recently=3), 0.8),
    ],
)
def test_confidence(cause: str, misfit: float, history: History, confidence: float) -> None:
    found = adjusted(FINDING, cause, misfit=misfit, history=history)

    assert found.confidence == pytest.approx(confidence)
