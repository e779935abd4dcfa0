"""What tests with a real engine share."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parent / "faults"
AGAIN = pytest.mark.flaky(reruns=3, reruns_delay=5)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Try again what a busy machine can spoil: a real engine's speed, the timing of real faults.

    Each rerun is counted in the summary. All other tests have one try: their time is data.
    """
    for item in items:
        if item.get_closest_marker("engine") or FAULTS in item.path.parents:
            item.add_marker(AGAIN)


@pytest.fixture(scope="session")
def ram_bytes_per_s() -> float:
    """The bandwidth of this machine's RAM, measured once for all tests."""
    command = [sys.executable, "-m", "slowtok.proxy.sampling.ram_bandwidth"]
    measured = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return max(float(json.loads(line)["bytes_per_s"]) for line in measured.stdout.splitlines())
