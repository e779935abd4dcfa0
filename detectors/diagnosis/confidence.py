"""Adjusts a finding's confidence by its misfit and by earlier requests.

A prediction far above the observed loss lowers it. A persistent cause (`Traits`) that was not found
in the previous requests is doubted until it is found again, so that one odd request raises no
alarm.
"""

from dataclasses import replace

from slowtok.detectors.case.case import History
from slowtok.detectors.case.finding import MAX_CONFIDENCE, Finding
from slowtok.detectors.diagnosis.catalog import causes_with

PERSISTENT = causes_with(lambda traits: traits.persistent)

WORST_FIT_RATIO = 0.5
"""What is left of the confidence where the prediction is as far off as is still let through."""

FEW = 2
FIRST_TIME_RATIO = 0.85
AGAIN_DOUBT_RATIO = 0.7
"""All three are heuristic."""


def adjusted(finding: Finding, cause: str, *, misfit: float, history: History) -> Finding:
    """Return the finding with its confidence adjusted."""
    return replace(
        finding, confidence=adjusted_confidence(finding, cause, misfit=misfit, history=history)
    )


def adjusted_confidence(finding: Finding, cause: str, *, misfit: float, history: History) -> float:
    """Return the adjusted confidence of a finding.

    `misfit` is 0 for a prediction not above the observed slowdown, and 1 for the largest accepted
    one.
    """
    confidence = finding.confidence * (1 - (1 - WORST_FIT_RATIO) * min(max(misfit, 0.0), 1.0))
    if cause in PERSISTENT and history.judged_recently >= FEW:
        occurrences = history.causes_recently.count(cause)
        if occurrences == 0:
            confidence *= FIRST_TIME_RATIO
        elif occurrences >= FEW:
            confidence = 1 - (1 - confidence) * AGAIN_DOUBT_RATIO
    return round(min(confidence, MAX_CONFIDENCE), 2)
