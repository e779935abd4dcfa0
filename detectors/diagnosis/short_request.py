"""The verdict on a request that was over too soon for any of its phases to be slow.

A phase is slow where it lost `MIN_WAIT_S` or more. A request that took less than that has lost
nothing that counts, so no cause is to be sought: its verdict follows from its decode rate and from
what is expected. Samples, neighbours and detectors would add nothing to it, and a process that has
none of them can give the verdict at once.
"""

from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S, judge_rate
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis


def judge_short(case: Case) -> Diagnosis | None:
    """Return the verdict that `diagnose` gives, without causes; None for a longer request.

    None also where the phases are not the engine's own word: then samples may tell them better.
    """
    if case.phases.source != "engine" or case.phases.total_s >= MIN_WAIT_S:
        return None
    reason = judge_rate(case).reason
    return Diagnosis(verdict="unknown" if reason else "normal", reason=reason)
