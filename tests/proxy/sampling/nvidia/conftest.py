"""What the tests of NVML share."""

import pytest

from fakes.nvml import clock as clocks
from fakes.nvml.clock import Clock


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clock for each test: on a busy machine a real sample may stall, and is dropped."""
    return clocks.stopped(monkeypatch)
