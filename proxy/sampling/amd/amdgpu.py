"""The AMD GPUs of a Linux machine, read from sysfs in tiers; no library is needed.

Strategy: a reading that proves slow when the GPU is opened is moved to the 1 Hz tier, a very slow
one is left out. A GPU that is powered down is left asleep: not even its temperature is worth waking
it for. While nothing is asked of the machine only what the driver keeps in memory is read, because
each reading of a sensor puts off the moment at which the GPU may power down.

A reading names each of its fields, with None for what could not be read.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from slowtok.proxy.sampling.amd.facts import find_kfd_node, read_facts, read_limits
from slowtok.proxy.sampling.amd.files import (
    AmdCard,
    SysFiles,
    find_cards,
    parse_clock,
    parse_generation,
)
from slowtok.proxy.sampling.amd.processes import Clients, processes_on, read_kfd_memory
from slowtok.proxy.sampling.hang_guard import PatientGpus
from slowtok.proxy.sampling.host.procfs import ProcFiles
from slowtok.proxy.sampling.schedule import ALL, Extras

EXPENSIVE_S = 1e-3
"""A reading that costs more is moved from the 10 Hz to the 1 Hz tier."""

LEFT_OUT_S = 0.02
"""One that costs more is not read at all: older GPUs wait up to 5 s for a mean of their power."""

STALL_S = 0.1
"""A sample that took longer is of no one moment, and dropped: the period of the fast tier."""

HUNG = "a reading of the amdgpu driver does not return"
NOT_TOLD = "the amdgpu driver does not report it for this GPU"
TOO_SLOW = f"reading it takes over {LEFT_OUT_S * 1000:g} ms on this GPU"
SHARED = "the GPU is part of the processor and uses the memory of the machine"

Values = dict[str, Any]
Reading = Callable[[AmdCard], Values]


@dataclass(slots=True)
class WatchedAmdGpu:
    """One GPU with its readings by tier. `fast` is empty until it was seen awake.

    `limits` are readings of the 1 Hz tier that are repeated in every line.
    """

    index: int
    card: AmdCard
    facts: Values
    gpu_id: int | None
    fast: list[Reading] = field(default_factory=list)
    slow_tier: list[Reading] = field(default_factory=list)
    limit: Values = field(default_factory=dict)


class AmdDevices:
    """All AMD GPUs of this machine, below `root`.

    With `private_pids` the pids of the compute driver are not those seen here, and left out.
    """

    def __init__(
        self, process_name: Callable[[int], str | None], *, root: str = "", private_pids: bool
    ) -> None:
        self._files = ProcFiles()
        self._process_files = ProcFiles()  # apart: a process that ends is no error of a GPU's
        self._root = root
        self._process_name = process_name
        self._private_pids = private_pids
        self._clients = Clients(self._process_files, root)
        self._stalled = 0
        cards = find_cards(self._files, root)
        self._watched = [self._make(index, card) for index, card in enumerate(cards)]
        self.reason: str | None = None

    def __len__(self) -> int:
        return len(self._watched)

    @property
    def facts(self) -> list[Values]:
        """The facts of all GPUs; of one that was asleep until now, what is known without it."""
        return [gpu.facts for gpu in self._watched]

    def counts(self) -> Values:
        """Return how many readings failed that had worked, and how many samples took too long."""
        return {"gpu_errors": self._files.failures, "gpu_samples_stalled": self._stalled}

    def sample(
        self, *, slow_tier: bool, servers: set[int] | None, extras: Extras = ALL
    ) -> list[Values]:
        """Return one line for each GPU that is awake.

        `slow_tier` adds the readings of once a second and the processes; `servers` are the pids of
        the watched servers.
        """

        def read(gpu: WatchedAmdGpu) -> Values:
            self._open(gpu)
            line = self._read(gpu, [*gpu.fast, *gpu.slow_tier] if slow_tier else gpu.fast)
            if slow_tier:
                gpu.limit = read_power_limit(gpu.card)
                if extras.lists:
                    line["processes"] = self._processes(gpu, servers or set())
            return line | gpu.limit

        return self._each(read)

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""

        def read(gpu: WatchedAmdGpu) -> Values:
            line = self._read(gpu, [] if gpu.facts["unified_memory"] else [read_memory])
            line["processes"] = self._processes(gpu, servers or set())
            return line

        return self._each(read)

    def look_s(self) -> float | None:
        """Return None: nothing here needs a look between readings."""

    def look(self) -> None:
        """Do nothing, see `look_s`."""

    def _each(self, read: Callable[[WatchedAmdGpu], Values]) -> list[Values]:
        lines = []
        for gpu in self._watched:
            if gpu.card.is_asleep():
                continue
            line = read(gpu)
            if time.monotonic() - line["at_s"] > STALL_S:
                self._stalled += 1
            else:
                lines.append(line)
        return lines

    def _read(self, gpu: WatchedAmdGpu, readings: Iterable[Reading]) -> Values:
        line: Values = {"kind": "gpu", "at_s": time.monotonic(), "index": gpu.index}
        for read in readings:
            line |= read(gpu.card)
        return line

    def _make(self, index: int, card: AmdCard) -> WatchedAmdGpu:
        facts = {"index": index, **read_facts(card, self._files, self._root)}
        node = find_kfd_node(self._files, card, self._root)
        return WatchedAmdGpu(index, card, facts, None if node is None else node.number("gpu_id"))

    def _open(self, gpu: WatchedAmdGpu) -> None:
        if gpu.fast:
            return
        unified = bool(gpu.facts["unified_memory"])
        readings = [read for read in FAST_READINGS if not (unified and read is read_memory)]
        absent: dict[str, str] = {}
        for read in readings:
            values, cost_s = _timed(read, gpu.card)
            if cost_s > LEFT_OUT_S:
                absent |= dict.fromkeys(values, TOO_SLOW)
                continue
            absent |= _missing(values)
            (gpu.fast if cost_s <= EXPENSIVE_S else gpu.slow_tier).append(read)
        absent |= _missing(read_power_limit(gpu.card))
        if unified:
            absent |= dict.fromkeys([*read_memory(gpu.card), *read_link(gpu.card)], SHARED)
        else:
            absent |= _missing(read_link(gpu.card))
            gpu.slow_tier.append(read_link)
        limits = read_limits(gpu.card)
        for clock in ("sm", "memory"):
            if limits[f"max_{clock}_clock_mhz"] is not None:  # switched off at this moment
                absent.pop(f"{clock}_clock_mhz", None)
        gpu.facts = {**gpu.facts, **limits, "absent": gpu.facts["absent"] | absent}

    def _processes(self, gpu: WatchedAmdGpu, servers: set[int]) -> list[Values]:
        clients = self._clients.read(servers, time.monotonic())
        found = processes_on(gpu.card.pci_bus_id, clients, servers, self._process_name)
        if gpu.facts["unified_memory"]:
            return [_all_in_one(process) for process in found]
        if gpu.gpu_id is None or self._private_pids:
            return found
        known = {process["pid"] for process in found}
        by_pid = read_kfd_memory(self._process_files, self._root, gpu.gpu_id)
        return found + [
            {
                "pid": pid,
                "name": self._process_name(pid),
                "memory_bytes": memory_bytes,
                "is_server": pid in servers,
            }
            for pid, memory_bytes in by_pid.items()
            if pid not in known and memory_bytes > 0
        ]


def _missing(values: Values) -> dict[str, str]:
    return {name: NOT_TOLD for name, value in values.items() if value is None}


def _timed(read: Reading, card: AmdCard) -> tuple[Values, float]:
    """Return what a reading gives and what it costs when repeated: the first one opens files."""
    read(card)
    begun_s = time.perf_counter()
    values = read(card)
    return values, time.perf_counter() - begun_s


def _all_in_one(process: Values) -> Values:
    """Count all of a process's memory as the GPU's: there is but one kind to use."""
    parts = [process["memory_bytes"], process["host_memory_bytes"]]
    known = [part for part in parts if part is not None]
    return process | {
        "memory_bytes": sum(known) if known else None,
        "host_memory_bytes": None,
        "evicted_bytes": None,
    }


def open_amd(
    process_name: Callable[[int], str | None], *, root: str = "", private_pids: bool
) -> PatientGpus | None:
    """Return AMD's GPUs, or None where there is none."""
    cards = AmdDevices(process_name, root=root, private_pids=private_pids)
    return PatientGpus(cards, HUNG) if len(cards) else None


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
