"""What slowtok reads of a GPU, held against what `nvidia-smi --query-gpu` says. Pure.

slowtok reads over and over while nvidia-smi runs: a field is the same where nvidia-smi's value lies
among the readings, give or take the tolerance of its kind.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MIB = 1 << 20
NOT_THERE = ("", "N/A", "[N/A]", "[Not Supported]", "[Not Found]", "[Unknown Error]")


class Kind(NamedTuple):
    """A kind of quantity: how nvidia-smi writes it, and how far two readings may differ."""

    read: Callable[[str], Any]
    tolerance: float = 0.0
    relative: float = 0.0


EXACT = Kind(str)
COUNT = Kind(int)
ADDRESS = Kind(lambda said: said.lower()[-len("0000:01:00.0") :])  # its domain has eight digits
MODE = Kind(lambda said: said == "Enabled")
PSTATE = Kind(lambda said: int(said.removeprefix("P")), tolerance=1)
MASK = Kind(lambda said: int(said, 0), tolerance=math.inf)  # reasons come and go in milliseconds
# nvidia-smi rounds to the MiB; what it takes itself while it runs is more
MEMORY = Kind(lambda said: int(said) * MIB, tolerance=16 * MIB)
# each driver's window, up to a second long, ends at another moment
RATIO = Kind(lambda said: float(said) / 100, tolerance=0.15)
POWER = Kind(float, tolerance=2.0, relative=0.05)
CLOCK = Kind(int, tolerance=15.0)  # the step of the clocks
HEAT = Kind(int, tolerance=1.0)
TIME = Kind(lambda said: int(said) * 1000, tolerance=1e6)  # us; the driver refreshes it at its pace

FIELDS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "name": (EXACT, ("name",)),
    "driver": (EXACT, ("driver_version",)),
    "pci_bus_id": (ADDRESS, ("pci.bus_id",)),
    "mig": (MODE, ("mig.mode.current",)),
    "total_bytes": (MEMORY, ("memory.total",)),
    "free_bytes": (MEMORY, ("memory.free",)),
    "reserved_bytes": (MEMORY, ("memory.reserved",)),
    "busy_ratio": (RATIO, ("utilization.gpu",)),
    "memory_busy_ratio": (RATIO, ("utilization.memory",)),
    "power_w": (POWER, ("power.draw.instant", "power.draw")),
    "power_limit_w": (POWER, ("enforced.power.limit",)),
    "default_power_limit_w": (POWER, ("power.default_limit",)),
    "min_power_limit_w": (POWER, ("power.min_limit",)),
    "max_power_limit_w": (POWER, ("power.max_limit",)),
    "sm_clock_mhz": (CLOCK, ("clocks.current.sm", "clocks.sm")),
    "memory_clock_mhz": (CLOCK, ("clocks.current.memory", "clocks.mem")),
    "max_sm_clock_mhz": (CLOCK, ("clocks.max.sm",)),
    "max_memory_clock_mhz": (CLOCK, ("clocks.max.memory", "clocks.max.mem")),
    "pstate": (PSTATE, ("pstate",)),
    "reasons": (MASK, ("clocks_event_reasons.active", "clocks_throttle_reasons.active")),
    "temperature_c": (HEAT, ("temperature.gpu",)),
    "temperature_margin_c": (HEAT, ("temperature.gpu.tlimit",)),
    "memory_temperature_c": (HEAT, ("temperature.memory",)),
    "pcie_generation": (COUNT, ("pcie.link.gen.gpucurrent", "pcie.link.gen.current")),
    "pcie_width": (COUNT, ("pcie.link.width.current",)),
    "max_pcie_generation": (COUNT, ("pcie.link.gen.max",)),
    "max_pcie_width": (COUNT, ("pcie.link.width.max",)),
    "gpu_max_pcie_generation": (COUNT, ("pcie.link.gen.gpumax",)),
    "ecc_errors": (COUNT, ("ecc.errors.uncorrected.aggregate.total",)),
    "throttled_power_ns": (TIME, ("clocks_event_reasons_counters.sw_power_cap",)),
    "throttled_sw_thermal_ns": (TIME, ("clocks_event_reasons_counters.sw_thermal_slowdown",)),
    "throttled_hw_thermal_ns": (TIME, ("clocks_event_reasons_counters.hw_thermal_slowdown",)),
    "throttled_power_brake_ns": (TIME, ("clocks_event_reasons_counters.hw_power_brake_slowdown",)),
}
"""By slowtok's name: the kind, and nvidia-smi's names, the one that says most of it first."""


def asked_for(known: set[str]) -> dict[str, str]:
    """Return the name to ask for, for each field that this nvidia-smi knows by any name."""
    found = {
        ours: next((n for n in names if n in known), "") for ours, (_, names) in FIELDS.items()
    }
    return {ours: name for ours, name in found.items() if name}


def compare(readings: Sequence[Mapping[str, Any]], said: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a line for each field that one of them knows; `same` says whether they agree.

    `said` is nvidia-smi's text by slowtok's name.
    """
    lines = []
    for field, text in said.items():
        kind = FIELDS[field][0]
        theirs = None if text in NOT_THERE else _read(kind, text)
        ours = list(dict.fromkeys(reading.get(field) for reading in readings))
        if theirs is not None or ours != [None]:
            same = _is_same(kind, ours, theirs)
            lines.append({"field": field, "slowtok": ours, "nvidia_smi": theirs, "same": same})
    return lines


def _read(kind: Kind, text: str) -> Any:
    try:
        return kind.read(text)
    except ValueError:
        return text  # a word that is not known here: shown, and never the same


def _is_same(kind: Kind, ours: list[Any], theirs: Any) -> bool:
    if theirs in ours:
        return True
    if not all(isinstance(value, int | float) for value in (*ours, theirs)):
        return False
    room = kind.tolerance + kind.relative * abs(theirs)
    return bool(min(ours) - room <= theirs <= max(ours) + room)
