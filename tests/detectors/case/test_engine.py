from typing import get_args

from slowtok.detectors.case import engine
from slowtok.detectors.expectation.published import ENGINES
from slowtok.proxy.engines.probing.facts import Kind


def test_the_sets_hold_only_kinds_that_slowtok_has() -> None:
    sets = {name: kinds for name, kinds in vars(engine).items() if name.isupper()}
    known = {*get_args(Kind), *ENGINES}

    assert sets
    assert {name: kinds - known for name, kinds in sets.items() if kinds - known} == {}
