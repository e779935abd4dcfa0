"""The readings that are cheap enough for 10 Hz, one for each thing that a GPU is asked."""

from typing import Any

from slowtok.proxy.sampling.nvidia.calls import CLOCK_MEMORY, CLOCK_SM, Device, Values

POWER_INSTANT = 186
"""Field id: power now, in mW; the plain call is a 1 s mean on Ampere and newer."""

TEMPERATURE_DIE = 0
PSTATE_UNKNOWN = 32

UTILIZATION = "nvmlDeviceGetUtilizationRates"
CLOCK = "nvmlDeviceGetClockInfo"
CLOCK_SM_KEY, CLOCK_MEMORY_KEY = f"{CLOCK} {CLOCK_SM}", f"{CLOCK} {CLOCK_MEMORY}"
MEMORY, MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"

FEEDS = {
    "busy_ratio": (UTILIZATION,),
    "memory_busy_ratio": (UTILIZATION,),
    "power_w": (f"field {POWER_INSTANT}", "nvmlDeviceGetPowerUsage"),
    "sm_clock_mhz": (CLOCK_SM_KEY,),
    "memory_clock_mhz": (CLOCK_MEMORY_KEY,),
    "pstate": ("nvmlDeviceGetPerformanceState",),
    "reasons": (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ),
    "temperature_c": (
        f"nvmlDeviceGetTemperatureV {TEMPERATURE_DIE}",
        f"nvmlDeviceGetTemperature {TEMPERATURE_DIE}",
    ),
    "temperature_margin_c": ("nvmlDeviceGetMarginTemperature",),
}
"""The calls that give each field; it is absent when none of them will ever answer."""

MEMORY_FEEDS = {
    "free_bytes": (MEMORY_V2, MEMORY),
    "total_bytes": (MEMORY_V2, MEMORY),
    "reserved_bytes": (MEMORY_V2,),
}


def read_busy(device: Device) -> Values:
    """Shares of time with a kernel running and with memory traffic; not shares of bandwidth."""
    rates = device.ask(UTILIZATION)
    if rates is None:
        return {}
    return {"busy_ratio": rates.gpu / 100, "memory_busy_ratio": rates.memory / 100}


def read_power(device: Device) -> Values:
    """Board power now, or its 1 s mean where the driver gives only that."""
    milliwatts = device.ask_fields(POWER_INSTANT).get(POWER_INSTANT)
    if milliwatts is None:
        milliwatts = device.ask("nvmlDeviceGetPowerUsage")
    return {"power_w": watts(milliwatts)}


def read_clocks(device: Device) -> Values:
    """Clocks in MHz as they are now."""
    return {
        "sm_clock_mhz": device.ask(CLOCK, CLOCK_SM, key=CLOCK_SM_KEY),
        "memory_clock_mhz": device.ask(CLOCK, CLOCK_MEMORY, key=CLOCK_MEMORY_KEY),
    }


def read_pstate(device: Device) -> Values:
    """Performance state: 0 is the fastest, 2 is usual for computing on GeForce."""
    pstate = device.ask("nvmlDeviceGetPerformanceState")
    return {"pstate": None if pstate == PSTATE_UNKNOWN else pstate}


def read_reasons(device: Device) -> Values:
    """Clocks-event mask as it is now."""
    reasons = device.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # the name before driver 535
        reasons = device.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {"reasons": reasons}


def read_temperature(device: Device) -> Values:
    """Die temperature, through the old name where the new one is missing."""
    celsius = device.ask("nvmlDeviceGetTemperatureV", TEMPERATURE_DIE)
    if celsius is None:
        celsius = device.ask("nvmlDeviceGetTemperature", TEMPERATURE_DIE)
    return {"temperature_c": celsius}


def read_margin(device: Device) -> Values:
    """Degrees to the nearest slowdown; Ada and newer have it."""
    return {"temperature_margin_c": device.ask("nvmlDeviceGetMarginTemperature")}


def read_memory(device: Device) -> Values:
    """Device memory. Unified memory answers not at all, or with a total of 0.

    `used` is left alone: whether it holds the reserved part depends on the driver.
    """
    memory = ask_memory(device)
    if memory is None or not memory.total:
        return {}
    return {
        "free_bytes": memory.free,
        "total_bytes": memory.total,
        "reserved_bytes": getattr(memory, "reserved", None),
    }


def ask_memory(device: Device) -> Any:
    """Return the driver's answer of the newest kind that it knows, or None."""
    memory = device.ask(MEMORY, device.nvml.nvmlMemory_v2, key=MEMORY_V2)
    return device.ask(MEMORY) if memory is None else memory


def watts(milliwatts: int | None) -> float | None:
    """Return NVML's milliwatts as watts."""
    return None if milliwatts is None else milliwatts / 1000
