"""Reads macmon's lines as facts and samples of an Apple GPU. Pure.

Source of the fields: macmon 0.8.2, `src_lib/metrics.rs` and `src_app/main.rs`; up to 0.7 there was
only `gpu_usage`, clock and load together.
"""

import json
from typing import Any

Values = dict[str, Any]

SILENT_ABOUT = (
    "dram_busy_ratio",
    "ecc_errors",
    "energy_j",
    "memory_busy_ratio",
    "memory_clock_mhz",
    "memory_temperature_c",
    "power_limit_w",
    "power_source",
    "processes",
    "pstate",
    "reasons",
    "remapped_rows",
    "temperature_margin_c",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
    "throttled_power_ns",
    "throttled_sw_thermal_ns",
    "xid",
    "xids",
)
NOT_OF_A_CHIP = (
    "free_bytes",
    "pcie_generation",
    "pcie_replays",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "pcie_width",
    "reserved_bytes",
    "total_bytes",
    "vgpu_licensed",
)
ABSENT = dict.fromkeys(SILENT_ABOUT, "macmon does not tell it") | dict.fromkeys(
    NOT_OF_A_CHIP, "the GPU is part of the processor and uses the memory of the machine"
)


def parse_line(text: str) -> Values | None:
    """Return one line's values; None for what macmon does not print."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or not isinstance(line.get("temp"), dict):
        return None
    values = _clock_and_load(line) or (None,)
    return line if all(isinstance(value, int | float) for value in values) else None


def _clock_and_load(line: Values) -> tuple[Any, Any] | None:
    if "gpu_freq_mhz" in line and "gpu_scaled_ratio" in line:
        return line["gpu_freq_mhz"], line["gpu_scaled_ratio"]
    both = line.get("gpu_usage")
    return (both[0], both[1]) if isinstance(both, list) and len(both) == 2 else None


def read_facts(line: Values) -> Values:
    """Return what does not change, by the names of the `GpuFacts` fields.

    Chips of the class Max come with fewer or more GPU cores, and another bandwidth with each.
    """
    soc = line.get("soc") or {}
    name, cores = soc.get("chip_name"), soc.get("gpu_cores")
    if name and cores and name.endswith(" Max"):
        name = f"{name} ({cores}-core)"
    return {
        "index": 0,
        "name": name,
        "vendor": "apple",
        "max_sm_clock_mhz": max(soc.get("gpu_freqs") or [], default=None),
        "unified_memory": True,
        "mig": False,
        "absent": ABSENT,
    }


def read_sample(line: Values, at_s: float, most_mhz: int | None) -> Values:
    """Return one line as a sample; it is about the half second before `at_s`."""
    clock_mhz, scaled_ratio = _clock_and_load(line) or (None, None)
    busy_ratio = line.get("gpu_active_ratio")
    if busy_ratio is None and most_mhz and clock_mhz and scaled_ratio is not None:
        # before 0.8 there is only the load weighted by the clock
        busy_ratio = min(scaled_ratio * most_mhz / clock_mhz, 1.0)
    return {
        "kind": "gpu",
        "at_s": at_s,
        "index": 0,
        "busy_ratio": busy_ratio,
        "sm_clock_mhz": clock_mhz,
        "power_w": line.get("gpu_power"),
        "temperature_c": round(line["temp"].get("gpu_temp_avg") or 0) or None,
    }
