"""Slow and expensive readings of one NVIDIA GPU: heat of the memory, faults, power feed.

Field ids and meanings are from nvml.h of CUDA 13.4.
"""

import time

from slowtok.proxy.sampling.nvidia.calls import UNSUPPORTED, Device, Values

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

FEEDS = {
    "memory_temperature_c": (f"field {MEMORY_TEMPERATURE}",),
    "power_source": (SOURCE,),
    "vgpu_licensed": (LICENCE,),
    "ecc_errors": (f"{ECC} {UNCORRECTED} {SINCE_MADE}",),
    "remapped_rows": (REMAPPED,),
    "pcie_replays": (REPLAYS,),
}


class Health:
    """What was asked last, which is told until it is asked again."""

    def __init__(self, *, is_virtual: bool | None) -> None:
        self._is_virtual = is_virtual
        self._known: Values = {}
        self._due_s = 0.0

    def is_due(self) -> bool:
        """Say whether the next reading asks the driver."""
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
    """Whether any feature of a vGPU is licensed; without, it is slowed down after a while."""
    answer = device.ask(LICENCE)
    if answer is None:
        return None
    features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
    if not answer.isGridLicenseSupported or not features:
        device.absent[LICENCE] = UNSUPPORTED[0]
        return None
    return any(feature.featureState for feature in features)
