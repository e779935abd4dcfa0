"""The verdict on a request that was too short for any phase to be slow.

A phase is slow only if it lost at least `MIN_WAIT_S`. A shorter request cannot have lost that, so
no cause needs to be found: its verdict follows from its decode rate and the expectation. It takes
no samples, neighbours or detectors, so a process that has none of them can give it at once.
"""

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S, judge_rate
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis


def judge_short(case: Case) -> Diagnosis | None:
    """Return the verdict that `diagnose` gives, without causes; None for a longer request.

    None also if the phases are not from the engine's own timings: then samples may correct them.
    """
    if case.phases.source != "engine" or case.phases.total_s >= MIN_WAIT_S:
        return None
    reason = judge_rate(case).reason
    return Diagnosis(verdict="unknown" if reason else "normal", reason=reason)
