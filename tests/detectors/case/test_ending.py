"""One list of what cuts a request short; what the proxy knows of it is the same."""

from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.proxy.http.response import WHAT_TO_CHECK
from slowtok.proxy.outputs.labels import ENDINGS


def test_names_are_those_of_metrics() -> None:
    assert set(CUT_SHORT) <= ENDINGS


def test_error_replies_give_the_same_hints() -> None:
    assert {name: one.hint for name, one in CUT_SHORT.items() if one.hint} == WHAT_TO_CHECK
