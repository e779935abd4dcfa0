"""Structured fields: what is written can be read by the rules of RFC 9651."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.outputs.headers import (
    MAX_STRING_CHARS,
    bare,
    decimal,
    inner_list,
    item,
    string,
)

# RFC 9651, sections 3.3.1 to 3.3.3.
INTEGER = re.compile(r"-?\d{1,15}")
DECIMAL = re.compile(r"-?\d{1,12}\.\d{1,3}")
STRING = re.compile(r'"(?:[ !#-\[\]-~]|\\["\\])*"')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-7, "-7"),
        (10**20, "999999999999999"),
        (0.0, "0.0"),
        (427.1, "427.1"),
        (2.0006, "2.001"),
        (-0.25, "-0.25"),
        (1e15, "999999999999.0"),
        ("", '""'),
        ('say "no" \\', '"say \\"no\\" \\\\"'),
        ("caf\u00e9\r\nx: y", '"caf???x: y"'),
    ],
)
def test_bare_values(value: float | str, text: str) -> None:
    assert bare(value) == text


@given(st.integers())
def test_integers_are_valid(value: int) -> None:
    assert INTEGER.fullmatch(bare(value))


@given(st.floats(allow_nan=False, allow_infinity=True))
def test_decimals_are_valid(value: float) -> None:
    assert DECIMAL.fullmatch(bare(value))


@given(st.floats(-1e11, 1e11), st.integers(1, 3))
def test_a_decimal_has_as_many_digits_as_it_needs(value: float, digits: int) -> None:
    written = decimal(value, digits)

    assert DECIMAL.fullmatch(written)
    assert float(written) == round(value, digits)
    assert written[-1] != "0" or written[-2] == "."


@given(st.text())
def test_strings_are_valid_and_bounded(text: str) -> None:
    written = string(text)

    assert STRING.fullmatch(written)
    assert len(written) <= 2 * MAX_STRING_CHARS + 2


def test_long_string_is_cut_visibly() -> None:
    assert string("x" * 300) == '"' + "x" * 237 + '..."'


def test_parameters_that_are_not_known_are_left_out() -> None:
    assert item("211", {"ms": None, "rate": 2.11, "basis": "x"}) == '211;rate=2.11;basis="x"'
    assert item("normal") == "normal"


def test_inner_list() -> None:
    assert inner_list((14.2, 19)) == "(14.2 19)"
