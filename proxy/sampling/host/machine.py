"""This machine and the servers behind the watched ports, sampled together.

The parts come from /proc on Linux and from psutil elsewhere.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from slowtok.proxy.sampling.host.host import Conditions, Fields
from slowtok.proxy.sampling.host.others import MUCH_CORES, Others

Line = dict[str, Any]

SHORTEST_SPAN_S = 0.05
"""A shorter span holds less than five clock ticks of 10 ms: its shares would be noise."""


class HostPart(Protocol):
    """Reads the machine's fields of a host sample."""

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the fields as they are now; `slow_tier` also looks at what changes slowly."""


class PortPart(Protocol):
    """Reads the server's fields of a host sample, for one port."""

    @property
    def pids(self) -> list[int]:
        """The server's processes; empty when there is none to be seen."""

    @property
    def is_known(self) -> bool:
        """Return True if no other process of this machine can be the server's."""

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the server's fields; none of them while no process is known."""

    def changes(self) -> Line | None:
        """Return the line about the process if it differs from the last one returned."""


class Machine:
    """Makes the lines about the host and its servers.

    `facts` do not change; `read_conditions` gives those that may. Without `others` nobody looks
    which other programs use the CPU.
    """

    def __init__(
        self,
        host: HostPart,
        make_port: Callable[[int], PortPart],
        *,
        facts: Fields | None = None,
        read_conditions: Callable[[], Conditions] = dict,
        others: Others | None = None,
    ) -> None:
        self._facts: Line = {"kind": "host_facts", **(facts or {})}
        self._read_conditions = read_conditions
        self._told: Line | None = None
        self._others = others
        self._host = host
        self._make_port = make_port
        self._ports: dict[int, PortPart] = {}
        self._last_at_s: float | None = None

    def watch(self, ports: list[int]) -> None:
        """Follow these ports and no others."""
        self._ports = {port: self._ports.get(port) or self._make_port(port) for port in ports}

    def server_pids(self) -> set[int]:
        """Return every process of every watched server."""
        return {pid for port in self._ports.values() for pid in port.pids}

    def doubt(self, lines: list[Line]) -> None:
        """Take back that a process on a GPU is no server's, where not all servers are known."""
        if all(port.is_known for port in self._ports.values()):
            return
        for process in (p for line in lines for p in line.get("processes") or ()):
            process["is_server"] = process["is_server"] or None

    def changes(self) -> Line | None:
        """Return the line about the host, if a condition has changed."""
        line = {**self._facts, **self._read_conditions()}
        if line == self._told:
            return None
        self._told = line
        return line

    def since_last_s(self) -> float | None:
        """Return how long ago the last sample was taken."""
        return None if self._last_at_s is None else time.monotonic() - self._last_at_s

    def begin(self) -> None:
        """A request begins."""
        if self._others is not None:
            self._others.begin()

    def sample(self, *, slow_tier: bool, others_s: float | None = None) -> list[Line]:
        """Return changes of processes, then one host line for each watched port.

        Without a port there is one line for the machine alone. The first call has no span and
        gives no host line. `others_s` is how often to look who else uses the CPU; None is never.
        """
        host = self._host.read(slow_tier=slow_tier)
        at_s = time.monotonic()
        servers = {number: port.read(slow_tier=slow_tier) for number, port in self._ports.items()}
        lines = [changes for port in self._ports.values() if (changes := port.changes())]
        before_at_s, self._last_at_s = self._last_at_s, at_s
        if before_at_s is None or at_s - before_at_s < SHORTEST_SPAN_S:
            return lines
        stamp = {"kind": "host", "at_s": at_s, "span_s": at_s - before_at_s}
        if not servers:
            hosts = [{**stamp, "port": None, **host}]
        else:
            hosts = [{**stamp, "port": p, **host, **server} for p, server in servers.items()]
        if others_s is not None:
            self._name_others(hosts, others_s)
        return lines + hosts

    def _name_others(self, hosts: list[Line], period_s: float) -> None:
        """Add who uses the CPU beside each server, where that is much and a look is due."""
        if self._others is None or not any(_used_by_others(line) >= MUCH_CORES for line in hosts):
            return
        largest_without = self._others.read(period_s)
        if largest_without is None:
            return
        for line in hosts:
            port = self._ports.get(line["port"])
            line["others"] = largest_without(port.pids if port else ())


def _used_by_others(line: Line) -> float:
    return (line.get("cpu_busy_cores") or 0.0) - (line.get("server_cpu_cores") or 0.0)


def make_machine(own_pid: int) -> tuple[Machine, Callable[[int], str | None]]:
    """Return this machine, and how to name a process on it; `own_pid` as for `Others`."""
    if sys.platform == "linux":
        # one platform's modules alone are loaded: the others cost memory or are not there
        from slowtok.proxy.sampling.host import host, identity, port  # noqa: PLC0415
        from slowtok.proxy.sampling.host.procfs import ProcFiles  # noqa: PLC0415

        files = ProcFiles()
        machine = Machine(
            host.HostReader(files),
            lambda number: port.PortReader(files, number),
            facts=host.read_host_facts(files) | {"private_pids": host.has_private_pids()},
            read_conditions=host.read_conditions,
            others=Others(own_pid),
        )
        return machine, identity.process_name
    from slowtok.proxy.sampling.host import portable  # noqa: PLC0415

    machine = Machine(
        portable.PortableHostReader(),
        portable.PortablePort,
        facts=portable.read_host_facts(),
        read_conditions=portable.read_conditions,
        others=Others(own_pid),
    )
    return machine, portable.process_name
