"""What decode took beyond expectation, and predictions that are a range.

Where physics gives only a range of what a cause costs, and the cause itself is proven by other
evidence, the value in the range that is nearest to what happened is taken: never more than the
range allows, and never less.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.phases import expected_decode_tps
from slowtok.detectors.window import decode_s

MOST_RATIO = 0.97
"""No cause is said to have taken all of a decode that did happen."""


def excess(case: Case) -> float | None:
    """Return by how much decode took longer than expected, None where nothing is expected."""
    expected, rate = expected_decode_tps(case), case.phases.decode_tps
    if not expected or not rate:
        return None
    return max(decode_s(case) * (1 - rate / expected), 0.0)


def within(case: Case, least_s: float, most_s: float) -> float:
    """Return the value between two predictions that is nearest to what decode lost.

    The lower one where nothing is expected here. Never more than nearly all of the decode.
    """
    excess_s = excess(case)
    nearest_s = least_s if excess_s is None else min(max(excess_s, least_s), most_s)
    return min(nearest_s, MOST_RATIO * decode_s(case))
