"""Narrowing what JSON says to what we count with."""

import math
from typing import Any

import pytest

from slowtok.detectors.case.case import EngineTimings, Tokens
from slowtok.proxy.stream.reply import Reply, count_of, number_of, text_of


@pytest.mark.parametrize("value", [None, -1, 1.0, 1.5, "1", True, False, [1], {}, -0.0])
def test_no_count(value: Any) -> None:
    assert count_of(value) is None


@pytest.mark.parametrize("value", [0, 1, 2**64 - 1])
def test_a_count(value: int) -> None:
    assert count_of(value) == value


@pytest.mark.parametrize("value", [None, -1, -0.1, math.nan, "1", True, False, [1.0], {}])
def test_no_number(value: Any) -> None:
    assert number_of(value) is None


@pytest.mark.parametrize("value", [0, 0.0, 1, 0.001, 2**64 - 1])
def test_a_number(value: float) -> None:
    assert number_of(value) == float(value)


@pytest.mark.parametrize(("value", "text"), [(None, None), ("", None), (7, None), ("x", "x")])
def test_a_text(value: Any, text: str | None) -> None:
    assert text_of(value) == text


def test_a_reply_that_told_nothing() -> None:
    assert Reply().tokens() == Tokens()
    assert Reply().engine() is None
    assert not Reply().is_timed
    assert Reply().choices == 1


def test_zero_is_a_measurement() -> None:
    assert Reply(prefill_s=0.0).engine() == EngineTimings(prefill_s=0.0)
    assert Reply(load_s=2.0).engine() == EngineTimings(load_s=2.0)
    assert Reply(prefill_s=0.0).is_timed
    assert Reply(queue_s=0.0).is_timed
    assert Reply(cached_tokens=0).tokens() == Tokens(cached=0)
