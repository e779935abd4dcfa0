"""One NVIDIA GPU that answers, and its parts: its readings by tier, each as often as it is worth.

Strategy: each cheap reading is timed when the GPU is opened, and moved to the 1 Hz tier if it
costs too much. Nothing here counts on the tiers being called regularly. A part has memory and
processes of its own: it is the whole GPU, or a MIG slice, which is asked by a handle of its own;
everything else is known of the whole GPU alone.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slowtok.proxy.sampling.nvidia import readings
from slowtok.proxy.sampling.nvidia.absent import absent_fields, rule_out
from slowtok.proxy.sampling.nvidia.calls import EXPENSIVE_S, Device, GpuLost, Values, cost_s
from slowtok.proxy.sampling.nvidia.counters import (
    FAST_TICK_S,
    PcieTraffic,
    make_read_throttled,
    read_energy,
)
from slowtok.proxy.sampling.nvidia.events import Xids
from slowtok.proxy.sampling.nvidia.facts import read_again, read_slice_facts, read_uuid
from slowtok.proxy.sampling.nvidia.gpm import DramBusy
from slowtok.proxy.sampling.nvidia.processes import read_known_processes, read_processes
from slowtok.proxy.sampling.nvidia.readings import Health, read_link, read_memory, read_power_limit
from slowtok.proxy.sampling.schedule import Extras

Reading = Callable[[Device], Values]

FAST_READINGS: tuple[Reading, ...] = (
    readings.read_power,
    readings.read_clocks,
    readings.read_pstate,
    readings.read_reasons,
)
"""Those of every GPU; `read_busy` and the traffic on the link are not known of slices."""

LEVEL_READINGS: tuple[Reading, ...] = (
    readings.read_temperature,
    readings.read_margin,
    read_power_limit,
)
"""What moves slowly enough to be asked at 1 Hz and told with every sample, as memory is."""

SLOW_TICK_S = 1.0

FACTS_S = 15.0
"""How often limits and facts that failed are asked for again; that takes a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How processes get their names; `is_hidden` where the driver shows none (WSL2)."""

    process_name: Callable[[int], str | None]
    is_hidden: bool = False


class Part:
    """The memory, the processes and the memory traffic of one GPU or slice."""

    def __init__(
        self, device: Device, facts: Values, naming: Naming, parent: Device | None = None
    ) -> None:
        self.device = device
        self.facts = facts
        self._naming = naming
        self._dram = DramBusy(device, parent)
        self._memory = read_memory(device)
        self._dram.read(device)  # the first sample, so that the next reading has a share
        if not naming.is_hidden:
            read_processes(device)  # once, to know whether there is an answer

    def read(self, *, slow_tier: bool, servers: set[int] | None, extras: Extras) -> Values:
        """Return memory; `slow_tier` asks for it anew, with its traffic and its processes.

        Processes are `extras`.
        """
        line: Values = {"index": self.facts["index"]}
        if slow_tier:
            self._memory = read_memory(self.device)
            line |= self._dram.read(self.device)
        if slow_tier and extras.lists:
            line["processes"] = self._processes(servers, busy=extras.shares)
        return line | self._memory

    def read_idle(self, servers: set[int] | None) -> Values:
        """Return memory and processes alone."""
        processes = self._processes(servers, busy=False)
        self._memory = read_memory(self.device)
        return {"index": self.facts["index"], **self._memory, "processes": processes}

    def close(self) -> None:
        """Give back what the driver keeps for it."""
        self._dram.close(self.device)

    def _processes(self, servers: set[int] | None, *, busy: bool) -> list[Values] | None:
        if self._naming.is_hidden:
            return None
        return read_known_processes(self.device, servers, self._naming.process_name, busy=busy)


def make_parts(
    gpu: Device, facts: Values, index_of_slice: Callable[[str], int], naming: Naming
) -> list[Part]:
    """Return the slices of a GPU, which stand in its place, or the GPU itself."""
    parts = []
    for uuid, handle in find_slices(gpu):
        device = Device(gpu.nvml, index_of_slice(uuid), handle)
        parts.append(Part(device, read_slice_facts(device, uuid, facts), naming, parent=gpu))
    return parts or [Part(gpu, facts, naming)]


def find_slices(gpu: Device) -> Iterator[tuple[str, Any]]:
    """Yield uuid and handle of each slice; none where MIG is off or the GPU cannot be cut."""
    modes = gpu.ask("nvmlDeviceGetMigMode")
    if not modes or not modes[0]:
        return
    for place in range(gpu.ask("nvmlDeviceGetMaxMigDeviceCount") or 0):
        # a place without a slice is not found, which is no error
        handle = gpu.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
        uuid = None if handle is None else read_uuid(Device(gpu.nvml, place, handle))
        if uuid is not None:
            yield uuid, handle


class WatchedNvidiaGpu:
    """One GPU and its parts. `facts` of the parts are replaced, never changed."""

    def __init__(
        self, device: Device, facts: Values, parts: list[Part], xids: Xids, *, is_wsl: bool
    ) -> None:
        self.device = device
        self.parts = parts
        self._xids = xids
        self._is_whole = parts[0].device is device
        self._asked = (device,) if self._is_whole else (device, *(part.device for part in parts))
        self._health = Health(is_virtual=facts["virtual"])
        self._levels: Values = {}
        self._fast: list[Reading] = []
        self._dear: list[Reading] = [make_read_throttled(facts["driver"])]
        self._traffic: PcieTraffic | None = None
        self._is_burst = self._is_counting = False
        self._absent_seen = -1
        self._facts_at_s = time.monotonic() + FACTS_S
        self._ruled_out = [rule_out(part.facts, is_wsl=is_wsl) for part in parts]
        for read in (readings.read_busy, *FAST_READINGS) if self._is_whole else FAST_READINGS:
            self._add(read)
        if not facts["unified_memory"]:  # there the link and its counters are placeholders
            self._dear.append(read_link)
            if self._is_whole:
                self._add_traffic(facts)
        for read in (*self._dear, read_energy, self._health.read):
            read(device)  # once, to know what is absent
        self._read_levels()

    def _add(self, read: Reading) -> bool:
        is_expensive = cost_s(read, self.device) > EXPENSIVE_S
        (self._dear if is_expensive else self._fast).append(read)
        return is_expensive

    def _add_traffic(self, facts: Values) -> None:
        traffic = PcieTraffic(facts["max_pcie_generation"], facts["max_pcie_width"])
        is_expensive = cost_s(traffic.look, self.device) > EXPENSIVE_S
        if is_expensive:
            self._dear.append(traffic.read)
        else:
            self._traffic = traffic
        self._ruled_out[0] |= traffic.ruled_out(SLOW_TICK_S if is_expensive else FAST_TICK_S)

    @property
    def needs_look(self) -> bool:
        """Return True if its link must be looked at between samples too."""
        return self._is_counting

    def look(self) -> None:
        """Look at the counters that wrap faster than samples are taken."""
        if self._traffic is not None and self._is_counting:
            self._is_counting = self._traffic.needs_look() and not self._is_burst
            # a lost GPU is for the next sample to find, which reports it
            with contextlib.suppress(GpuLost):
                self._traffic.look(self.device)

    def sample(self, *, slow_tier: bool, servers: set[int] | None, extras: Extras) -> list[Values]:
        """Return one line for each part; `slow_tier` adds the 1 Hz tier, `extras` and health.

        Raises:
            GpuLost: it must be opened again.
        """
        line = self._begin()
        for read in (*self._fast, *self._dear) if slow_tier else self._fast:
            line |= read(self.device)
        line |= self._count_traffic(extras)
        if slow_tier:
            self._read_levels()
            self._refresh_facts()
            if extras.energy:
                line |= read_energy(self.device)
            self._check_slices()
            line |= self._health.read(self.device) | self._xids.read(self.device)
        line |= self._levels
        return [
            line | p.read(slow_tier=slow_tier, servers=servers, extras=extras) for p in self.parts
        ]

    def sample_idle(self, servers: set[int] | None) -> list[Values]:
        """Return memory and processes alone.

        Raises:
            GpuLost: it must be opened again.
        """
        line = self._begin()
        return [line | part.read_idle(servers) for part in self.parts]

    def _refresh_facts(self) -> None:
        """Put what changed, and what is told only now, into the facts of a whole GPU.

        Raises:
            GpuLost: it must be opened again.
        """
        now_s = time.monotonic()
        if now_s < self._facts_at_s:
            return
        self._facts_at_s = now_s + FACTS_S
        if self._is_whole:
            self.parts[0].facts = read_again(self.device, self.parts[0].facts)

    def refresh_absent(self) -> None:
        """Put what turned out not to be there into the facts."""
        seen = sum(len(device.absent) for device in self._asked)
        if seen == self._absent_seen:
            return
        self._absent_seen = seen
        for part, ruled_out in zip(self.parts, self._ruled_out, strict=True):
            absent = absent_fields(self.device, part.device, part.facts) | ruled_out
            if absent != part.facts.get("absent"):
                part.facts = part.facts | {"absent": absent}

    def errors(self) -> int:
        """Return how many calls failed in a way that is neither absence nor loss."""
        return sum(device.errors.total() for device in self._asked)

    def close(self) -> None:
        """Give back what the driver keeps for it; call this before NVML is shut down."""
        for part in self.parts:
            part.close()

    def _read_levels(self) -> None:
        for read in LEVEL_READINGS:
            self._levels |= read(self.device)

    def _count_traffic(self, extras: Extras) -> Values:
        if self._traffic is None:
            return {}
        if extras.traffic == "steady":
            self._is_burst, self._is_counting = False, self._traffic.needs_look()
            return self._traffic.read(self.device)
        told = self._traffic.tell() if self._is_burst else {}
        if extras.traffic == "burst":
            self._is_burst = self._is_counting = True
            return self._traffic.read(self.device) | told
        return told

    def _begin(self) -> Values:
        return {"kind": "gpu", "at_s": time.monotonic()}

    def _check_slices(self) -> None:
        if not self._health.is_due():
            return
        now = {uuid for uuid, _ in find_slices(self.device)}
        if now != {part.facts["uuid"] for part in self.parts if part.facts.get("partition_of")}:
            raise GpuLost("its MIG slices changed")
