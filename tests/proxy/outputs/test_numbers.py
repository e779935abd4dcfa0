"""The numbers of records are those that the standard library gives."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.outputs.numbers import median_of, rounded

NUMBERS = st.floats(allow_nan=False) | st.floats(-1e4, 1e4) | st.integers(-(10**12), 10**12)
MILLIONTHS = st.integers(-(10**9), 10**9).map(lambda count: count / 1e6)
HALVES = st.integers(-(10**7), 10**7).map(lambda count: count / 2000)


@given(NUMBERS | MILLIONTHS | HALVES)
def test_rounded_as_the_library_does(value: float) -> None:
    assert repr(rounded(value)) == repr(round(value, 3))


@given(st.lists(st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9), min_size=1))
def test_median_as_the_library_has_it(values: list[float]) -> None:
    assert median_of(sorted(values)) == statistics.median(values)
