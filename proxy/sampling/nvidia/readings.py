"""The readings of an NVIDIA GPU that count nothing: one function for each thing it is asked.

Most are cheap enough for 10 Hz; `Health` holds what is slow or expensive. Field ids and meanings
are from nvml.h of CUDA 13.4.
"""

import time
from typing import Any

from slowtok.proxy.sampling.nvidia.calls import CLOCK_MEMORY, CLOCK_SM, UNSUPPORTED, Device, Values

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

LIMIT_FEEDS = {"power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit",)}
LINK_FEEDS = {
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
}

HEALTH_S = 15.0
"""Period: to ask for the memory's heat costs 1.2 ms on an RTX 5090, even if the answer is no."""

MEMORY_TEMPERATURE = 82
"""Field id."""

POWER_SOURCES = {0: "ac", 1: "battery", 2: "undersized"}
UNCORRECTED, SINCE_MADE = 1, 1
"""nvmlMemoryErrorType_t and nvmlEccCounterType_t: the aggregate outlives reboots."""

ECC = "nvmlDeviceGetTotalEccErrors"
REMAPPED = "nvmlDeviceGetRemappedRows"
REPLAYS = "nvmlDeviceGetPcieReplayCounter"
SOURCE = "nvmlDeviceGetPowerSource"
LICENCE = "nvmlDeviceGetGridLicensableFeatures"

HEALTH_FEEDS = {
    "memory_temperature_c": (f"field {MEMORY_TEMPERATURE}",),
    "power_source": (SOURCE,),
    "vgpu_licensed": (LICENCE,),
    "ecc_errors": (f"{ECC} {UNCORRECTED} {SINCE_MADE}",),
    "remapped_rows": (REMAPPED,),
    "pcie_replays": (REPLAYS,),
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


def read_power_limit(device: Device) -> Values:
    """The limit in force, whoever set it."""
    return {"power_limit_w": watts(device.ask("nvmlDeviceGetEnforcedPowerLimit"))}


def read_link(device: Device) -> Values:
    """The PCIe link as it is now: an idle GPU goes down to generation 1, by design."""
    return {
        "pcie_generation": device.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": device.ask("nvmlDeviceGetCurrPcieLinkWidth"),
    }


class Health:
    """What was asked last, which is told until it is asked again."""

    def __init__(self, *, is_virtual: bool | None) -> None:
        self._is_virtual = is_virtual
        self._known: Values = {}
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Return True if the next reading asks the driver."""
        return time.monotonic() >= self._due_s

    def read(self, device: Device) -> Values:
        """Return what is known, asked anew at most every `HEALTH_S` seconds."""
        if self.is_due():
            self._known = read_health(device)
            if self._is_virtual:
                self._known["vgpu_licensed"] = read_licensed(device)
            self._due_s = time.monotonic() + HEALTH_S
        return self._known


def read_health(device: Device) -> Values:
    """Heat in degrees Celsius, what feeds the GPU, and counts since it was made or started."""
    remapped = device.ask(REMAPPED)
    return {
        "memory_temperature_c": device.ask_fields(MEMORY_TEMPERATURE).get(MEMORY_TEMPERATURE),
        "power_source": POWER_SOURCES.get(device.ask(SOURCE)),
        "ecc_errors": device.ask(ECC, UNCORRECTED, SINCE_MADE),
        "remapped_rows": None if remapped is None else remapped[0] + remapped[1],
        "pcie_replays": device.ask(REPLAYS),
    }


def read_licensed(device: Device) -> bool | None:
    """Return whether any feature of a vGPU is licensed; without, it is slowed after a while."""
    answer = device.ask(LICENCE)
    if answer is None:
        return None
    features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
    if not answer.isGridLicenseSupported or not features:
        device.absent[LICENCE] = UNSUPPORTED[0]
        return None
    return any(feature.featureState for feature in features)
