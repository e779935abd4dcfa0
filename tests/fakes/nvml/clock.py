"""A clock that a test turns, in place of the module `time` in the code that reads GPUs."""

import pytest

from slowtok.proxy.sampling.nvidia import counters as nvml_counters
from slowtok.proxy.sampling.nvidia import devices as nvml_devices
from slowtok.proxy.sampling.nvidia import gpm as nvml_gpm
from slowtok.proxy.sampling.nvidia import readings as nvml_readings
from slowtok.proxy.sampling.nvidia import watched as nvml_watched

MODULES = (nvml_counters, nvml_devices, nvml_gpm, nvml_readings, nvml_watched)


class Clock:
    """Stands for the module `time`."""

    now_s = 1000.0

    def monotonic(self) -> float:
        """Return what the test says."""
        return self.now_s


def stopped(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Put a clock that stands still into all of them."""
    clock = Clock()
    for module in MODULES:
        monkeypatch.setattr(module, "time", clock)
    return clock
