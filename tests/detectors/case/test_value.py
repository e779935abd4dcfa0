"""A value is a data class whose fields the type checker lets nobody set."""

from dataclasses import asdict, fields, replace

import pytest

from slowtok.detectors.case.value import frozen_dataclass


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """An example."""

    tokens: int
    seconds: float = 1.0


def test_values_are_compared_copied_and_looked_up_by_what_they_hold() -> None:
    rate = Rate(tokens=2)

    assert rate == Rate(tokens=2, seconds=1.0)
    assert len({rate, Rate(tokens=2), Rate(tokens=3)}) == 2
    assert replace(rate, seconds=2.0) == Rate(tokens=2, seconds=2.0)
    assert asdict(rate) == {"tokens": 2, "seconds": 1.0}
    assert [field.name for field in fields(rate)] == ["tokens", "seconds"]


def test_the_type_checker_lets_nobody_set_a_field() -> None:
    rate = Rate(tokens=2)
    rate.tokens = 3  # type: ignore[misc]  # the check fails where nothing had to be ignored here

    with pytest.raises(AttributeError):
        rate.other = 3  # type: ignore[attr-defined]
