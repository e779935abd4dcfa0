"""What tests with a real engine share."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def ram_bytes_per_s() -> float:
    """The bandwidth of this machine's RAM, measured once for all tests."""
    command = [sys.executable, "-m", "slowtok.proxy.sampling.ram_bandwidth"]
    measured = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return float(json.loads(measured.stdout)["bytes_per_s"])
