"""Cases whose baseline is known later than their expectation, as the proxy makes them."""

from dataclasses import replace

from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.expectation.envelope import refined


def with_baseline(case: Case, baseline: Baseline) -> Case:
    """The case with its baseline, which refines its expectation."""
    return replace(case, baseline=baseline, envelope=refined(case, baseline))
