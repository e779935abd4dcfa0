"""Constant facts of one NVIDIA GPU, read when it is opened.

What failed then in a way that may pass is asked again; limits that software may move, too.
"""

from typing import Any

from slowtok.proxy.sampling.nvidia.calls import (
    CLOCK_MEMORY,
    CLOCK_SM,
    UNKNOWN,
    UNSUPPORTED,
    Device,
    Values,
)
from slowtok.proxy.sampling.nvidia.readings import MEMORY, ask_memory, watts

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""NVML_DEVICE_ARCH_* of nvml.h, CUDA 13.4."""

VGPU_GUEST = 2
MEMORY_SLICES = 8
SLOWDOWN = 1
"""nvmlTemperatureThresholds_t: where the hardware begins to slow down, in degrees Celsius."""


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
    mig_modes = ask("nvmlDeviceGetMigMode")
    virtualization = ask("nvmlDeviceGetVirtualizationMode")
    facts = {
        "index": device.index,
        "uuid": read_uuid(device),
        "name": _text(ask("nvmlDeviceGetName")),
        "vendor": "nvidia",
        "architecture": ARCHITECTURES.get(ask("nvmlDeviceGetArchitecture")),
        "pci_bus_id": _pci_bus_id(ask("nvmlDeviceGetPciInfo")),
        "virtual": None if virtualization is None else virtualization == VGPU_GUEST,
        "slowdown_temperature_c": ask("nvmlDeviceGetTemperatureThreshold", SLOWDOWN),
        "max_sm_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
        "max_memory_clock_mhz": ask("nvmlDeviceGetMaxClockInfo", CLOCK_MEMORY),
        "driver": driver,
        "mig": None if mig_modes is None else bool(mig_modes[0]),
    }
    facts |= _memory_facts(device, facts["max_memory_clock_mhz"])
    facts |= _limit_facts(device)
    if not facts["unified_memory"]:  # there, generation 1 and width 1 are placeholders
        facts |= _link_facts(device)
    return facts


CALLS = {
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "architecture": "nvmlDeviceGetArchitecture",
    "pci_bus_id": "nvmlDeviceGetPciInfo",
    "virtual": "nvmlDeviceGetVirtualizationMode",
    "slowdown_temperature_c": f"nvmlDeviceGetTemperatureThreshold {SLOWDOWN}",
    "max_sm_clock_mhz": f"nvmlDeviceGetMaxClockInfo {CLOCK_SM}",
    "max_memory_clock_mhz": f"nvmlDeviceGetMaxClockInfo {CLOCK_MEMORY}",
    "bus_width_bits": "nvmlDeviceGetMemoryBusWidth",
    "total_bytes": MEMORY,
    "max_pcie_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_pcie_width": "nvmlDeviceGetMaxPcieLinkWidth",
}
"""The call that gives a fact, as `Device` remembers it."""


def read_again(device: Device, facts: Values) -> Values:
    """Return the facts with the limits as they are now, and with what is told this time.

    An unknown error that came too often is tried again as well; what is not supported or not
    permitted stays so. The facts are the same object where nothing is new.
    """
    failed = [
        CALLS[name] for name in CALLS if facts.get(name, "") is None and device.errors[CALLS[name]]
    ]
    for call in failed:
        if device.absent.get(call) == UNKNOWN:
            del device.absent[call]
    found = read_facts(device, facts["driver"]) if failed else _limit_facts(device)
    changes = {
        n: value for n, value in found.items() if value is not None and value != facts.get(n)
    }
    return facts | changes if changes else facts


def read_slice_facts(device: Device, uuid: str, gpu: Values) -> Values:
    """Return the facts of a MIG slice: its own where it has some, else those of its GPU.

    Of the bandwidth it has the share that its memory slices are: each is an eighth of the memory,
    with its own controllers (NVIDIA's MIG user guide).
    """
    memory = ask_memory(device)
    peak, whole = gpu["bandwidth_bytes_per_s"], gpu["total_bytes"]
    slices = round(MEMORY_SLICES * memory.total / whole) if memory and whole else 0
    return gpu | {
        "index": device.index,
        "uuid": uuid,
        "name": _text(device.ask("nvmlDeviceGetName")) or gpu["name"],
        "partition_of": gpu["uuid"],
        "total_bytes": memory.total if memory and memory.total else None,
        "bus_width_bits": None,
        "bandwidth_bytes_per_s": peak * slices / MEMORY_SLICES if peak and slices else None,
        "unified_memory": False,
    }


def read_uuid(device: Device) -> str | None:
    """Return the name that a GPU or slice has for good."""
    return _text(device.ask("nvmlDeviceGetUUID"))


def _pci_bus_id(pci: Any) -> str | None:
    """As the kernel writes it in sysfs; NVML's own text has a domain of eight digits."""
    return None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _memory_facts(device: Device, clock_mhz: int | None) -> Values:
    memory = ask_memory(device)
    total_bytes = memory.total if memory and memory.total else None
    bus_bits = device.ask("nvmlDeviceGetMemoryBusWidth") or None
    # with unified memory there is no total, and bus and clock are placeholders
    peak = bandwidth_bytes_per_s(clock_mhz, bus_bits) if total_bytes else None
    return {
        "total_bytes": total_bytes,
        "bus_width_bits": bus_bits,
        "bandwidth_bytes_per_s": peak,
        "unified_memory": _is_unified(device, memory),
    }


def _is_unified(device: Device, memory: Any) -> bool | None:
    """By nvml.h the memory call is not supported there; some drivers say a total of 0 instead."""
    if memory is None and device.absent.get(MEMORY) not in UNSUPPORTED:
        return None  # it failed in another way: without permission in MIG mode, for instance
    return not (memory and memory.total)


def _limit_facts(device: Device) -> Values:
    constraints = device.ask("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
    return {
        "default_power_limit_w": watts(device.ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        "min_power_limit_w": watts(constraints[0]),
        "max_power_limit_w": watts(constraints[1]),
    }


def _link_facts(device: Device) -> Values:
    return {
        "max_pcie_generation": device.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "max_pcie_width": device.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "gpu_max_pcie_generation": device.ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    }


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
