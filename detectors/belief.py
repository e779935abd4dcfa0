"""How far a finding is believed, beyond the evidence that it rests on.

A prediction of far more than happened contradicts; a lasting cause that was not there in the
requests just before is doubted until it is seen again (one odd request does not cry).
"""

from collections.abc import Collection
from dataclasses import replace

from slowtok.detectors.case import History
from slowtok.detectors.finding import MOST_CONFIDENCE, Finding

LASTING: Collection[str] = frozenset(
    {
        "clocks-stuck",
        "draft-rejected",
        "flash-attention-off",
        "gpu-shared",
        "host-bound",
        "multi-gpu-split",
        "pcie-link",
        "power-cap",
        "reload-degradation",
        "slow-kernel",
        "slow-prefill",
        "vram-spill",
    }
)
"""Causes that do not come for one request and go: what a setup has, it has for many."""

WORST_FIT_RATIO = 0.5
"""What is left of the confidence where the prediction is as far off as is still let through."""

FEW = 2
FIRST_TIME_RATIO = 0.85
AGAIN_DOUBT_RATIO = 0.7
"""None of the three has a published source."""


def believed(finding: Finding, cause: str, *, misfit: float, history: History) -> Finding:
    """Return the finding with the confidence that it deserves after all."""
    return replace(finding, confidence=deserved(finding, cause, misfit=misfit, history=history))


def deserved(finding: Finding, cause: str, *, misfit: float, history: History) -> float:
    """Return a finding's confidence, weighed.

    `misfit` is 0 for a prediction that is not above what happened, 1 for one that is as far above
    as is still let through.
    """
    confidence = finding.confidence * (1 - (1 - WORST_FIT_RATIO) * min(max(misfit, 0.0), 1.0))
    if cause in LASTING and history.judged_recently >= FEW:
        seen = history.causes_recently.count(cause)
        if seen == 0:
            confidence *= FIRST_TIME_RATIO
        elif seen >= FEW:
            confidence = 1 - (1 - confidence) * AGAIN_DOUBT_RATIO
    return round(min(confidence, MOST_CONFIDENCE), 2)
