"""A GPU's parts with memory and processes of their own: the whole GPU, or its MIG slices.

A slice is asked by a handle of its own; everything else is known of the whole GPU alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slowtok.proxy.sampling.nvidia.calls import Device, Values
from slowtok.proxy.sampling.nvidia.facts import read_slice_facts, read_uuid
from slowtok.proxy.sampling.nvidia.fast import read_memory
from slowtok.proxy.sampling.nvidia.gpm import DramBusy
from slowtok.proxy.sampling.nvidia.processes import read_known_processes, read_processes
from slowtok.proxy.sampling.optional_readings import Extras


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
