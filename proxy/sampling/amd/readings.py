"""Readings of an AMD GPU that are taken again and again, one for each thing.

A reading names each of its fields, with None for what could not be read.
"""

from collections.abc import Callable
from typing import Any

from slowtok.proxy.sampling.amd.files import AmdCard, SysFiles, parse_clock, parse_generation

Values = dict[str, Any]
Reading = Callable[[AmdCard], Values]


def read_busy(card: AmdCard) -> Values:
    """Shares of time that the GPU worked and that its memory did."""
    percents = (card.device.number(f"{part}_busy_percent") for part in ("gpu", "mem"))
    ratios = [None if percent is None else min(percent / 100, 1.0) for percent in percents]
    return {"busy_ratio": ratios[0], "memory_busy_ratio": ratios[1]}


def read_power(card: AmdCard) -> Values:
    """Power now, or its mean where the driver gives only that; a processor's is that of all."""
    if card.sensors is None:
        return {"power_w": None}
    now_w = card.sensors.watts("power1_input")
    return {"power_w": card.sensors.watts("power1_average") if now_w is None else now_w}


def read_clocks(card: AmdCard) -> Values:
    """Clocks in MHz as they are now."""
    clocks = (parse_clock(card.device.text(f"pp_dpm_{kind}clk") or b"") for kind in ("s", "m"))
    shader, memory = clocks
    return {"sm_clock_mhz": shader.now_mhz, "memory_clock_mhz": memory.now_mhz}


def read_temperatures(card: AmdCard) -> Values:
    """Temperature at the die's edge and of the memory, and the least distance to a critical one.

    MI300 has no sensor at the edge: there it is the hottest spot's.
    """
    by_place = {} if card.sensors is None else _by_place(card.sensors)
    margins = [most - now for now, most in by_place.values() if now is not None and most]
    edge = by_place.get(b"edge") or by_place.get(b"junction") or (None, None)
    return {
        "temperature_c": edge[0],
        "memory_temperature_c": by_place.get(b"mem", (None, None))[0],
        "temperature_margin_c": min(margins, default=None),
    }


def _by_place(sensors: SysFiles) -> dict[bytes, tuple[int | None, int | None]]:
    """Return each sensor's temperature and critical temperature."""
    places = ((number, sensors.text(f"temp{number}_label")) for number in (1, 2, 3))
    return {
        place: (sensors.celsius(f"temp{number}_input"), sensors.celsius(f"temp{number}_crit"))
        for number, place in places
        if place is not None
    }


def read_memory(card: AmdCard) -> Values:
    """Free and total device memory, which the driver knows without asking the GPU.

    Where there is none, some kernels fall over the question how much of it is used (MI300A).
    """
    total_bytes = card.device.number("mem_info_vram_total")
    used_bytes = card.device.number("mem_info_vram_used") if total_bytes else None
    if total_bytes is None or used_bytes is None:
        return {"free_bytes": None, "total_bytes": None}
    return {"free_bytes": max(total_bytes - used_bytes, 0), "total_bytes": total_bytes}


def read_power_limit(card: AmdCard) -> Values:
    """The limit in force, whoever set it."""
    return {"power_limit_w": None if card.sensors is None else card.sensors.watts("power1_cap")}


def read_link(card: AmdCard) -> Values:
    """The PCIe link as it is now, and how often something had to be sent again."""
    return {
        "pcie_generation": parse_generation(card.link.text("current_link_speed") or b""),
        "pcie_width": card.link.number("current_link_width"),
        "pcie_replays": card.device.number("pcie_replay_count"),
    }


FAST_READINGS: tuple[Reading, ...] = (
    read_busy,
    read_power,
    read_clocks,
    read_temperatures,
    read_memory,
)
