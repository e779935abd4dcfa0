"""What a GPU can be asked: the name of each field of `GpuSample` for people, and who gives it.

Source: nvml.h of CUDA 13.4 for what is supported where; amdgpu's files for AMD.
"""

from collections.abc import Mapping

_COUNTERS = "the driver may be too old for these counters"
_OWN_MEMORY = "GPUs that use the machine's memory have none of their own: look at its RAM"
_WHOLE = "slices of a GPU (MIG) do not tell it"
_ERRORS = "data-centre and workstation GPUs count them, GeForce cards do not"
_LINK = "not told in virtual machines that share a GPU, nor by GPUs without a PCIe slot"

NAMES: Mapping[str, str] = {
    "busy_ratio": "GPU utilisation",
    "memory_busy_ratio": "time with memory traffic",
    "power_w": "power",
    "power_limit_w": "power limit in force",
    "sm_clock_mhz": "clock of the processors",
    "memory_clock_mhz": "clock of the memory",
    "pstate": "performance state",
    "reasons": "reasons for lower clocks",
    "temperature_c": "temperature",
    "free_bytes": "memory of the GPU",
    "total_bytes": "memory of the GPU",
    "reserved_bytes": "memory that the driver reserves",
    "processes": "processes on the GPU",
    "temperature_margin_c": "temperature margin",
    "memory_temperature_c": "temperature of the memory",
    "dram_busy_ratio": "share of the memory bandwidth in use",
    "pcie_rx_bytes_per_s": "PCIe traffic",
    "pcie_tx_bytes_per_s": "PCIe traffic",
    "pcie_generation": "PCIe link",
    "pcie_width": "PCIe link",
    "energy_j": "energy",
    "throttled_power_ns": "time throttled",
    "throttled_sw_thermal_ns": "time throttled",
    "throttled_hw_thermal_ns": "time throttled",
    "throttled_power_brake_ns": "time throttled",
    "power_source": "power source",
    "vgpu_licensed": "vGPU licence",
    "ecc_errors": "memory errors",
    "remapped_rows": "memory errors",
    "pcie_replays": "PCIe errors",
    "xid": "critical errors (Xid)",
    "xids": "critical errors (Xid)",
}

WHO_HAS: Mapping[str, str] = {
    "busy_ratio": _WHOLE,
    "memory_busy_ratio": _WHOLE,
    "power_w": "virtual machines and Jetson boards do not tell it",
    "power_limit_w": "laptops and virtual machines often do not tell it",
    "reasons": "a newer driver may tell them",
    "free_bytes": _OWN_MEMORY,
    "total_bytes": _OWN_MEMORY,
    "reserved_bytes": "a newer driver may tell it",
    "processes": "not told under WSL2; inside a container it takes --pid=host",
    "temperature_margin_c": "Ada and newer GPUs tell it, with a driver that knows them",
    "memory_temperature_c": "GPUs with HBM tell it, GeForce cards do not",
    "dram_busy_ratio": "Hopper and newer data-centre GPUs tell it",
    "pcie_rx_bytes_per_s": _LINK,
    "pcie_tx_bytes_per_s": _LINK,
    "pcie_generation": _LINK,
    "pcie_width": _LINK,
    "energy_j": "Volta and newer GPUs count it",
    "throttled_power_ns": _COUNTERS,
    "throttled_sw_thermal_ns": _COUNTERS,
    "throttled_hw_thermal_ns": _COUNTERS,
    "throttled_power_brake_ns": _COUNTERS,
    "power_source": "laptops tell it",
    "vgpu_licensed": "asked of virtual GPUs only",
    "ecc_errors": _ERRORS,
    "remapped_rows": _ERRORS,
    "xid": "the driver reports them on Linux only",
    "xids": "the driver reports them on Linux only",
}


def name_of(field: str) -> str:
    """Return what people call a field of `GpuSample`."""
    return NAMES.get(field, field)


def why_absent(field: str, reason: str) -> str:
    """Return why a GPU does not give a field, and which GPUs do."""
    return "; ".join(part for part in (reason, WHO_HAS.get(field)) if part)
