"""The record's GPU entries: each GPU's state during the request, and who used its memory. Pure.

What a GPU does not report is left out.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Any

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, gained, gpu_facts, newest
from slowtok.detectors.analysis.gpu.vram import Holder, newest_split
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import NAMES
from slowtok.detectors.case.machine import GpuSample

MAX_OTHERS = 5
"""Processes that are named; all are counted."""

MAX_NAME_CHARS = 64
MIN_ENERGY_RATIO = 0.5
"""Of the decode, between two readings of the energy counter. Heuristic."""

SPREADS = (  # of GpuSample: median, p10 and p90 over the request
    "busy_ratio",
    "memory_busy_ratio",
    "dram_busy_ratio",
    "power_w",
    "power_limit_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "pstate",
    "temperature_c",
    "temperature_margin_c",
    "memory_temperature_c",
    "free_bytes",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
)
HIGHEST = ("pcie_generation", "pcie_width")  # an idle link goes down, by design
LAST = ("power_source", "vgpu_licensed")
ERRORS = ("ecc_errors", "remapped_rows", "pcie_replays", "xids")
THROTTLED = {  # the counters of the same names
    "throttled_power_ns": "sw-power-cap",
    "throttled_sw_thermal_ns": "sw-thermal",
    "throttled_hw_thermal_ns": "hw-thermal",
    "throttled_power_brake_ns": "hw-power-brake",
}

_FIELDS = (*SPREADS, *HIGHEST, *LAST, "reasons")
_VALUES = attrgetter(*_FIELDS)
_COUNTERS = {name: attrgetter(name) for name in (*ERRORS, *THROTTLED, "energy_j")}


def gpu_entries(case: Case) -> list[dict[str, Any]]:
    """Return an entry for each GPU that the server uses; for all GPUs if that is not known.

    If it uses none, also for all: what the GPUs did meanwhile is evidence.
    """
    server_gpus = case.server.gpu_indices
    samples = [sample for sample in case.gpu if not server_gpus or sample.index in server_gpus]
    return [
        _entry(case, index, samples_of_gpu) for index, samples_of_gpu in by_gpu(samples).items()
    ]


def memory_entry(samples: Sequence[GpuSample]) -> dict[str, Any] | None:
    """Return who uses the memory of one GPU, from the newest sample that shows it."""
    split = newest_split(samples)
    if split is None:
        return None
    entry = {
        "server_bytes": split.server_bytes,
        "server_host_bytes": _server_sum(samples, "host_memory_bytes"),
        "server_evicted_bytes": _server_sum(samples, "evicted_bytes"),
        "others_bytes": None if split.unassigned_bytes is None else split.others_bytes,
        "others": [_holder(other) for other in split.others[:MAX_OTHERS]] or None,
        "unassigned_bytes": split.unassigned_bytes or None,
        "hidden_bytes": split.hidden_bytes,
        "free_bytes": split.free_bytes,
        "total_bytes": split.total_bytes,
    }
    return {name: value for name, value in entry.items() if value is not None}


def _entry(case: Case, index: int, samples: Sequence[GpuSample]) -> dict[str, Any]:
    facts, readings = gpu_facts(case, index), _readings(samples)
    gains = {name: gained(samples, read) for name, read in _COUNTERS.items()}
    energy_j = gains["energy_j"]
    entry = {
        "index": index,
        "name": facts.name,
        "uuid": facts.uuid,
        **{name: _spread(readings[name]) for name in SPREADS},
        **{name: max(readings[name], default=None) for name in HIGHEST},
        **{name: readings[name][-1] if readings[name] else None for name in LAST},
        "reasons": _reason_shares(readings["reasons"]),
        "throttled_ms": _throttled_ms(gains),
        "energy_j": None if energy_j is None else round(energy_j, 3),
        "energy_j_per_token": None if energy_j is None else _energy_j_per_token(case, samples),
        **{name: gains[name] for name in ERRORS},
        "xid": newest(samples, lambda s: s.xid) if gains["xids"] else None,
        "vram": memory_entry(samples),
    }
    return {name: value for name, value in entry.items() if value is not None}


def _readings(samples: Sequence[GpuSample]) -> dict[str, list[Any]]:
    """Return the known values of each field, in their order."""
    columns = zip(_FIELDS, zip(*map(_VALUES, samples), strict=True), strict=True)
    return {name: [value for value in column if value is not None] for name, column in columns}


def _reason_shares(readings: Sequence[int]) -> dict[str, float] | None:
    if not readings:
        return None
    masks, shares = {mask: readings.count(mask) for mask in set(readings)}, {}
    for bit, name in NAMES.items():
        if count := sum([count for mask, count in masks.items() if mask & bit]):
            shares[name] = round(count / len(readings), 3)
    return shares


def _throttled_ms(gains: Mapping[str, float | None]) -> dict[str, float] | None:
    found = {
        name: round(ns / 1e6, 1)
        for field, name in THROTTLED.items()
        if (ns := gains[field]) is not None
    }
    return found or None


def _energy_j_per_token(case: Case, samples: Sequence[GpuSample]) -> float | None:
    """Return mean power during decode times the time per token; of this GPU alone."""
    window, rate_tps, decode_s = case.window("decode"), case.phases.decode_tps, case.phases.decode_s
    if window is None or not rate_tps or not decode_s:
        return None
    counted = [s for s in samples if s.energy_j is not None and window[0] <= s.at_s <= window[1]]
    joules = gained(counted, lambda s: s.energy_j)
    if joules is None or counted[-1].at_s - counted[0].at_s < MIN_ENERGY_RATIO * decode_s:
        return None
    return round(joules / (counted[-1].at_s - counted[0].at_s) / rate_tps, 3)


def _server_sum(samples: Sequence[GpuSample], name: str) -> int | None:
    processes = next((s.processes for s in reversed(samples) if s.processes is not None), ())
    known = [getattr(p, name) for p in processes if p.is_server]
    return sum(known) if known and None not in known else None


def _holder(other: Holder) -> Mapping[str, Any]:
    name = other.name and other.name[:MAX_NAME_CHARS]
    holder = {"name": name, "pid": other.pid, "bytes": other.memory_bytes}
    return {name: value for name, value in holder.items() if value is not None}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered, last = sorted(values), len(values) - 1
    return {
        "median": round(median(ordered), 3),
        "p10": round(ordered[int(0.1 * last)], 3),
        "p90": round(ordered[int(0.9 * last)], 3),
    }
