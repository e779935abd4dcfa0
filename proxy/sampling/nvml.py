"""NVIDIA GPUs, first tier: the cheap calls at 10 Hz, process lists and limits at 1 Hz.

Strategy: `Gpus` holds the devices while NVML works. When one is lost everything is shut down,
reported, and tried again after a pause that doubles from 5 to 60 s; a GPU that fails alone is left
out while the others go on. Nothing here raises into the sampling loop.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from slowtok.proxy.sampling.nvml_calls import (
    LOST,
    Device,
    GpuLost,
    Values,
    cost_s,
    read_busy,
    read_clocks,
    read_facts,
    read_memory,
    read_power,
    read_power_limit,
    read_processes,
    read_state,
)

FAST_READINGS = (read_busy, read_power, read_clocks, read_state, read_memory)

DEAR_S = 1e-3
"""A reading that costs more is moved from the 10 Hz to the 1 Hz tier."""

PAUSE_S = (5.0, 60.0)
HEALTHY_S = 60.0
"""After this long without a loss the next pause is the shortest again. No published source."""

LIBRARY_NOT_FOUND = 12


class Gpus:
    """All NVIDIA GPUs of this machine, through a module with the functions of `pynvml`."""

    def __init__(self, nvml: Any, process_name: Callable[[int], str | None]) -> None:
        self._nvml = nvml
        self._process_name = process_name
        self._devices: dict[int, Device] = {}
        self._facts: list[Values] | None = None
        self._demoted: dict[int, set[Any]] = {}
        self._limits: dict[int, Values] = {}
        self._reason: str | None = None
        self._told: object = ()
        self._pause_s = PAUSE_S[0]
        self._opened_at_s = 0.0
        self._retry_at_s: float | None = 0.0

    def __len__(self) -> int:
        return len(self._devices)

    def news(self) -> dict[str, Any] | None:
        """Return the line about the GPUs and why there are none, if it changed."""
        state = {"kind": "gpus", "gpus": self._facts, "reason": self._reason}
        if state == self._told:
            return None
        self._told = state
        return state

    def errors(self) -> int:
        """Return how many calls failed in a way that is neither absence nor loss."""
        return sum(sum(device.errors.values()) for device in self._devices.values())

    def sample(self, *, dear: bool, servers: set[int]) -> list[Values]:
        """Return one line for each GPU; `dear` also looks at limits and processes.

        `servers` are the pids of the watched servers.
        """
        if not self._ready(time.monotonic()):
            return []
        try:
            return [self._read(d, FAST_READINGS, dear, servers) for d in self._devices.values()]
        except GpuLost as lost:
            self._lose(str(lost))
            return []

    def sample_idle(self, servers: set[int]) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""
        if not self._ready(time.monotonic()):
            return []
        try:
            return [self._read(d, (read_memory,), True, servers) for d in self._devices.values()]
        except GpuLost as lost:
            self._lose(str(lost))
            return []

    def close(self) -> None:
        """Shut NVML down, as far as it lets us."""
        self._devices = {}
        # a failure means it was not initialised or is lost: nothing is left to give back
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _read(
        self, device: Device, readings: Iterable[Any], dear: bool, servers: set[int]
    ) -> Values:
        line: Values = {"kind": "gpu", "at_s": time.monotonic(), "index": device.index}
        for read in readings:
            if dear or read not in self._demoted[device.index]:
                line |= read(device)
        if dear:
            self._limits[device.index] = read_power_limit(device)
            line["processes"] = self._name_processes(read_processes(device), servers)
        return line | self._limits.get(device.index, {})

    def _name_processes(
        self, processes: list[Values] | None, servers: set[int]
    ) -> list[Values] | None:
        for process in processes or ():
            process["name"] = self._process_name(process["pid"])
            process["is_server"] = process["pid"] in servers
        return processes

    def _ready(self, now_s: float) -> bool:
        if self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._open(now_s)
        return bool(self._devices)

    def _open(self, now_s: float) -> None:
        if self._devices:
            self.close()
        self._retry_at_s, self._reason = None, None
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self._facts = None
            self._reason = _why(error)
            if error.value != LIBRARY_NOT_FOUND:  # a library does not appear by itself
                self._pause(now_s)
            return
        self._opened_at_s = now_s
        self._facts = [facts for index in range(count) if (facts := self._add(index)) is not None]
        if self._reason is not None:
            self._pause(now_s)

    def _add(self, index: int) -> Values | None:
        try:
            device = Device(self._nvml, index)
            facts = read_facts(device, self._driver())
            costs = {read: cost_s(read, device) for read in FAST_READINGS}
        except (GpuLost, self._nvml.NVMLError) as error:
            self._reason = f"GPU {index}: {error}"
            return None
        self._demoted[index] = {read for read, cost in costs.items() if cost > DEAR_S}
        self._devices[index] = device
        return facts

    def _driver(self) -> str | None:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def _lose(self, reason: str) -> None:
        now_s = time.monotonic()
        self.close()
        self._reason = reason
        if now_s - self._opened_at_s > HEALTHY_S:
            self._pause_s = PAUSE_S[0]
        self._pause(now_s)

    def _pause(self, now_s: float) -> None:
        self._retry_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_S[1])


def _why(error: Any) -> str:
    if error.value == LIBRARY_NOT_FOUND:
        return "NVML library not found"
    return LOST.get(error.value, str(error))


def open_gpus(process_name: Callable[[int], str | None]) -> Gpus | str:
    """Return the GPUs, or why this installation cannot look at any."""
    try:
        import pynvml  # noqa: PLC0415  costs 4 MiB, and need not be installed
    except ImportError:
        return "Python package nvidia-ml-py is not installed"
    return Gpus(pynvml, process_name)
