"""How one GPU is asked: each call's failures are sorted once, and each value gets its unit.

`nvml` is the module `pynvml`, or anything that has the same functions: nothing here imports it.
Sources: nvml.h of CUDA 13.4 for meanings and units, and the error values of nvidia-ml-py 13.615.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

Values = dict[str, Any]

LOST = {
    1: "NVML is not initialised",
    9: "NVIDIA driver not loaded",
    15: "GPU is lost",
    16: "GPU needs a reset",
    18: "NVIDIA driver and library versions differ (restart needed)",
    28: "GPU not found",
}
"""Errors after which every handle is worthless until NVML is initialised again."""

UNSUPPORTED = (3, 13)  # NotSupported, FunctionNotFound: this GPU or driver will never answer
NOTHING_NEW = (6, 21)  # NotFound, NoData: an empty answer
UNKNOWN = 999
UNKNOWN_TRIES = 3
"""An unknown error this often in a row counts as unsupported. No published source."""

POWER_INSTANT = 186
"""Field id: power now, in mW; the plain call is a 1 s mean on Ampere and newer."""

CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_DIE = 0
PSTATE_UNKNOWN = 32


class GpuLost(Exception):
    """The GPU or the driver went away; the text says how."""


class Device:
    """One GPU: its handle, and what its driver turned out not to answer."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.absent: set[str] = set()
        self.errors: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()
        self.handle: Any = None
        self.handle = self._call("nvmlDeviceGetHandleByIndex", index)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call `nvml.<name>(handle, ...)`; None where there is no answer.

        Raises:
            GpuLost: the handle is worthless now.
        """
        key = f"{name}{arguments}"
        if key in self.absent:
            return None
        try:
            answer = self._call(name, self.handle, *arguments)
        except self.nvml.NVMLError as error:
            self._note(key, error.value)
            return None
        except AttributeError:  # an older binding does not know the function
            self.absent.add(key)
            return None
        self._unknown.pop(key, None)
        return answer

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.nvml, name)(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(LOST[error.value]) from error
            raise

    def _note(self, key: str, code: int) -> None:
        if code in UNSUPPORTED:
            self.absent.add(key)
        elif code not in NOTHING_NEW:
            self.errors[key] += 1
            self._unknown[key] += code == UNKNOWN
            if self._unknown[key] >= UNKNOWN_TRIES:
                self.absent.add(key)


def bandwidth_bytes_per_s(memory_clock_mhz: int | None, bus_width_bits: int | None) -> float | None:
    """Return the memory's peak. The factor is 2 for every NVIDIA memory type.

    NVML gives half of the data rate per pin for GDDR and HBM alike; nvbench uses the same rule.
    """
    if not memory_clock_mhz or not bus_width_bits:
        return None
    return 2 * memory_clock_mhz * 1e6 * bus_width_bits / 8


def read_facts(device: Device, driver: str | None) -> Values:
    """Return what does not change, by the names of the `GpuFacts` fields."""
    ask = device.ask
    total_bytes = read_memory(device).get("total_bytes")
    bus_bits = ask("nvmlDeviceGetMemoryBusWidth")
    memory_mhz = ask("nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY)
    # with unified memory there is no total, and bus and clock are placeholders
    bandwidth = bandwidth_bytes_per_s(memory_mhz, bus_bits) if total_bytes else None
    return {
        "index": device.index,
        "uuid": _text(ask("nvmlDeviceGetUUID")),
        "name": _text(ask("nvmlDeviceGetName")),
        "total_bytes": total_bytes,
        "bus_width_bits": bus_bits or None,
        "max_sm_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
        "max_memory_clock_mhz": memory_mhz,
        "bandwidth_bytes_per_s": bandwidth,
        "driver": driver,
    }


def read_busy(device: Device) -> Values:
    """Shares of time with a kernel running and with memory traffic; not shares of bandwidth."""
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    if rates is None:
        return {}
    return {"busy_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def read_power(device: Device) -> Values:
    """Board power now, or its 1 s mean where the driver gives only that."""
    milliwatts = _power_instant_mw(device)
    if milliwatts is None:
        milliwatts = device.ask("nvmlDeviceGetPowerUsage")
    return {"power_w": None if milliwatts is None else milliwatts / 1000}


def _power_instant_mw(device: Device) -> int | None:
    key = "field 186"
    if key in device.absent:
        return None
    answers = device.ask("nvmlDeviceGetFieldValues", [POWER_INSTANT])
    if not answers:
        return None
    if answers[0].nvmlReturn:  # each field has an error of its own
        device.absent.add(key)
        return None
    return int(answers[0].value.uiVal)


def read_clocks(device: Device) -> Values:
    """Clocks in MHz as they are now."""
    return {
        "sm_clock_mhz": device.ask("nvmlDeviceGetClockInfo", CLOCK_SM),
        "memory_clock_mhz": device.ask("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
    }


def read_state(device: Device) -> Values:
    """Performance state, clocks-event mask and die temperature."""
    pstate = device.ask("nvmlDeviceGetPerformanceState")
    reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name before driver 535
        reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    celsius = device.ask("nvmlDeviceGetTemperatureV", TEMPERATURE_DIE)
    if celsius is None:
        celsius = device.ask("nvmlDeviceGetTemperature", TEMPERATURE_DIE)
    return {
        "pstate": None if pstate == PSTATE_UNKNOWN else pstate,
        "reasons": reasons,
        "temperature_c": celsius,
    }


def read_memory(device: Device) -> Values:
    """Free and total device memory. Unified memory answers not at all, or with a total of 0."""
    version = getattr(device.nvml, "nvmlMemory_v2", None)
    memory = device.ask("nvmlDeviceGetMemoryInfo", version) if version else None
    if memory is None:
        memory = device.ask("nvmlDeviceGetMemoryInfo")
    if memory is None or not memory.total:
        return {}
    return {"free_bytes": memory.free, "total_bytes": memory.total}


def read_power_limit(device: Device) -> Values:
    """The limit in force, whoever set it."""
    milliwatts = device.ask("nvmlDeviceGetEnforcedPowerLimit")
    return {"power_limit_w": None if milliwatts is None else milliwatts / 1000}


def read_processes(device: Device) -> list[Values] | None:
    """Processes with memory on this GPU; one that is in both of the driver's lists counts once."""
    lists = [
        device.ask("nvmlDeviceGetComputeRunningProcesses"),
        device.ask("nvmlDeviceGetGraphicsRunningProcesses"),
    ]
    if all(processes is None for processes in lists):
        return None
    by_pid: dict[int, int | None] = {}
    for process in (process for processes in lists for process in processes or ()):
        known = by_pid.get(process.pid)
        memory = process.usedGpuMemory  # None where the driver hides it (Windows)
        by_pid[process.pid] = max(known or 0, memory) if memory is not None else known
    return [{"pid": pid, "memory_bytes": memory} for pid, memory in by_pid.items()]


def cost_s(read: Callable[[Device], Values], device: Device) -> float:
    """Return what one reading costs once the driver has warmed up."""
    read(device)
    begun_s = time.perf_counter()
    read(device)
    return time.perf_counter() - begun_s


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
