"""One list of what cuts a request short."""

from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.proxy.outputs.labels import ENDINGS


def test_names_are_those_of_metrics() -> None:
    assert set(CUT_SHORT) <= ENDINGS
