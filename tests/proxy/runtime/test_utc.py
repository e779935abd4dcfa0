"""Moments as text: what the standard library would say, in less time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.runtime.utc import utc_text


@given(st.floats(-1e9, 1e11) | st.integers(-(10**9), 10**11).map(lambda ms: ms / 1000))
def test_the_same_as_the_standard_library_says(unix_s: float) -> None:
    said = datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")

    assert utc_text(unix_s) == said


@pytest.mark.parametrize(
    ("unix_s", "text"),
    [
        (1795179541.25, "2026-11-20T12:59:01.250+00:00"),
        (1795179541.9999999, "2026-11-20T12:59:02.000+00:00"),  # rounded to a microsecond first
        (1795179541.9996, "2026-11-20T12:59:01.999+00:00"),
        (0.0, "1970-01-01T00:00:00.000+00:00"),
    ],
)
def test_fractions(unix_s: float, text: str) -> None:
    assert utc_text(unix_s) == text


def test_a_moment_that_is_not_known() -> None:
    assert utc_text(None) is None
