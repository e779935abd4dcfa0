"""What all tests share."""

import os

import pytest
from hypothesis import settings

from fakes.running import measured_ram_bytes_per_s

AGAIN = pytest.mark.flaky(reruns=3, reruns_delay=5)

pytest.register_assert_rewrite("fakes.cause_tests")

# The same examples in every run, however slow the machine is; `make fuzz` tries others.
settings.register_profile("bounded", derandomize="FUZZ" not in os.environ, deadline=None)
settings.load_profile("bounded")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try again what others' load can spoil: a test whose subject is a real engine's speed.

    Each rerun is counted in the summary. All other tests have one try: their time is data.
    """
    for item in items:
        if item.get_closest_marker("engine_speed"):
            item.add_marker(AGAIN)


@pytest.fixture(scope="session")
def ram_bytes_per_s() -> float:
    """The bandwidth of this machine's RAM, measured once for all tests."""
    return measured_ram_bytes_per_s()
