"""What all tests share."""

import os

import pytest
from hypothesis import settings

from fakes.running import measured_ram_bytes_per_s
from fakes.speed_tests import (
    pytest_collection_modifyitems,
    pytest_runtest_call,
    pytest_runtest_makereport,
)

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
]

pytest.register_assert_rewrite("fakes.cause_tests")

# The same examples in every run, however slow the machine is; `make fuzz` tries others.
settings.register_profile("bounded", derandomize="FUZZ" not in os.environ, deadline=None)
settings.load_profile("bounded")


@pytest.fixture(scope="session")
def ram_bytes_per_s() -> float:
    """The bandwidth of this machine's RAM, measured once for all tests."""
    return measured_ram_bytes_per_s()
