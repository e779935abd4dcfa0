"""The NVIDIA GPUs of this machine in tiers, for as long as NVML works.

Strategy: when a GPU is lost everything is shut down, reported, and tried again after a pause that
doubles from 5 to 60 s; a GPU that fails alone is left out while the others go on. A GPU is known
by its UUID: it keeps its index through all of this, wherever NVML lists it afterwards.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from slowtok.proxy.sampling.nvml_calls import LOST, Device, GpuLost, Values, cost_s
from slowtok.proxy.sampling.nvml_counters import (
    LOOK_S,
    PcieTraffic,
    make_read_throttled,
    read_energy,
)
from slowtok.proxy.sampling.nvml_facts import read_facts
from slowtok.proxy.sampling.nvml_fast import (
    read_busy,
    read_clocks,
    read_margin,
    read_memory,
    read_power,
    read_pstate,
    read_reasons,
    read_temperature,
)
from slowtok.proxy.sampling.nvml_mid import read_link, read_power_limit
from slowtok.proxy.sampling.nvml_processes import read_busy_by_pid, read_processes

Reading = Callable[[Device], Values]

FAST_READINGS: tuple[Reading, ...] = (
    read_busy,
    read_power,
    read_clocks,
    read_pstate,
    read_reasons,
    read_temperature,
    read_margin,
    read_memory,
)

DEAR_S = 1e-3
"""A reading that costs more is moved from the 10 Hz to the 1 Hz tier."""

STALL_S = 0.1
"""A sample that took longer is of no one moment, and dropped: the period of the fast tier."""

PAUSE_S = (5.0, 60.0)
HEALTHY_S = 60.0
"""After this long without a loss the next pause is the shortest again. No published source."""

LIBRARY_NOT_FOUND = 12


@dataclass(slots=True)
class Watched:
    """One GPU that answers, with its readings by tier; `limit` is what the last dear one said.

    `traffic` is there only if its counters must be looked at between samples too.
    """

    device: Device
    facts: Values
    fast: list[Reading]
    dear: list[Reading]
    traffic: PcieTraffic | None = None
    limit: Values = field(default_factory=dict)


class Devices:
    """All NVIDIA GPUs, through a module with the functions of `pynvml`."""

    def __init__(self, nvml: Any, process_name: Callable[[int], str | None]) -> None:
        self._nvml = nvml
        self._process_name = process_name
        self._watched: list[Watched] = []
        self._index_by_uuid: dict[str, int] = {}
        self._pause_s = PAUSE_S[0]
        self._opened_at_s = 0.0
        self._retry_at_s: float | None = 0.0
        self.facts: list[Values] | None = None
        self.reason: str | None = None
        """Why there are no GPUs, or not all of them."""
        self.stalled = 0
        """How many samples took too long to be of use."""
        self._is_active = False

    def __len__(self) -> int:
        return len(self._watched)

    def errors(self) -> int:
        """Return how many calls failed in a way that is neither absence nor loss."""
        return sum(sum(gpu.device.errors.values()) for gpu in self._watched)

    def sample(self, *, dear: bool, servers: set[int]) -> list[Values]:
        """Return one line for each GPU; `dear` adds the 1 Hz tier and the processes.

        `servers` are the pids of the watched servers.
        """

        def read(gpu: Watched) -> Values:
            line = self._read(gpu, [*gpu.fast, *gpu.dear] if dear else gpu.fast)
            if dear:
                gpu.limit = read_power_limit(gpu.device)
                line["processes"] = self._processes(gpu.device, servers, busy=True)
            return line | gpu.limit

        self._is_active = True
        return self._each(read)

    def sample_idle(self, servers: set[int]) -> list[Values]:
        """Return memory and processes alone: who holds the memory before the next load."""

        def read(gpu: Watched) -> Values:
            line = self._read(gpu, [read_memory])
            line["processes"] = self._processes(gpu.device, servers, busy=False)
            return line

        self._is_active = False
        return self._each(read)

    def look_s(self) -> float | None:
        """Return how soon `look` should be called after a sample; None where it need not be."""
        fast_links = self._is_active and any(gpu.traffic for gpu in self._watched)
        return LOOK_S if fast_links else None

    def look(self) -> None:
        """Look at the counters that wrap faster than samples are taken."""
        for gpu in self._watched:
            if gpu.traffic is not None:
                # a lost GPU is for the next sample to find, which reports it
                with contextlib.suppress(GpuLost):
                    gpu.traffic.look(gpu.device)

    def _each(self, read: Callable[[Watched], Values]) -> list[Values]:
        now_s = time.monotonic()
        if self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._open(now_s)
        lines = []
        for gpu in self._watched:
            try:
                line = read(gpu)
            except GpuLost as lost:
                self._lose(f"GPU {gpu.device.index}: {lost}")
                break
            if time.monotonic() - line["at_s"] > STALL_S:
                self.stalled += 1
            else:
                lines.append(line)
        return lines

    def _read(self, gpu: Watched, readings: Iterable[Reading]) -> Values:
        line: Values = {"kind": "gpu", "at_s": time.monotonic(), "index": gpu.device.index}
        for read in readings:
            line |= read(gpu.device)
        return line

    def _processes(self, device: Device, servers: set[int], *, busy: bool) -> list[Values] | None:
        processes = read_processes(device)
        busy_by_pid = read_busy_by_pid(device) if busy and processes else {}
        for process in processes or ():
            pid = process["pid"]
            process["name"] = self._process_name(pid)
            process["is_server"] = pid in servers
            process.update(busy_by_pid.get(pid, {}))
        return processes

    def _open(self, now_s: float) -> None:
        if self._watched:
            self._close()
        self._retry_at_s, self.reason = None, None
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.facts = None
            self.reason = _why(error)
            if error.value != LIBRARY_NOT_FOUND:  # a library does not appear by itself
                self._pause(now_s)
            return
        self._opened_at_s = now_s
        for position in range(count):
            self._add(position)
        self.facts = [gpu.facts for gpu in self._watched]
        self._miss()
        if self.reason is not None:
            self._pause(now_s)

    def _add(self, position: int) -> None:
        try:
            device = Device(self._nvml, position)
            driver = self._driver()
            facts = read_facts(device, driver)
            device.index = facts["index"] = self._index(facts["uuid"], position)
            self._watched.append(_watch(device, facts, driver))
        except (GpuLost, self._nvml.NVMLError) as error:
            self.reason = f"GPU {position}: {error}"

    def _index(self, uuid: str | None, position: int) -> int:
        taken = set(self._index_by_uuid.values())
        free = position if position not in taken else max(taken) + 1
        return self._index_by_uuid.setdefault(uuid or f"at {position}", free)

    def _miss(self) -> None:
        present = {gpu.device.index for gpu in self._watched}
        missing = sorted(set(self._index_by_uuid.values()) - present)
        if missing and self.reason is None:
            self.reason = f"GPU {missing[0]}: not listed by the driver any more"

    def _driver(self) -> str | None:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def _lose(self, reason: str) -> None:
        now_s = time.monotonic()
        self._close()
        self.reason = reason
        if now_s - self._opened_at_s > HEALTHY_S:
            self._pause_s = PAUSE_S[0]
        self._pause(now_s)

    def _close(self) -> None:
        self._watched = []
        # a failure means it was not initialised or is lost: nothing is left to give back
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _pause(self, now_s: float) -> None:
        self._retry_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSE_S[1])


def _watch(device: Device, facts: Values, driver: str | None) -> Watched:
    dear = {read for read in FAST_READINGS if cost_s(read, device) > DEAR_S}
    gpu = Watched(
        device=device,
        facts=facts,
        fast=[read for read in FAST_READINGS if read not in dear],
        dear=[*dear, make_read_throttled(driver), read_energy],
    )
    if not facts["unified_memory"]:  # no link there, and what counts its bytes is a placeholder
        gpu.dear.append(read_link)
        _watch_traffic(gpu, PcieTraffic(facts["max_pcie_generation"], facts["max_pcie_width"]))
    return gpu


def _watch_traffic(gpu: Watched, traffic: PcieTraffic) -> None:
    if cost_s(traffic.look, gpu.device) > DEAR_S:
        gpu.dear.append(traffic.read)
        return
    gpu.fast.append(traffic.read)
    if traffic.needs_look():
        gpu.traffic = traffic


def _why(error: Any) -> str:
    if error.value == LIBRARY_NOT_FOUND:
        return "NVML library not found"
    return LOST.get(error.value, str(error))
