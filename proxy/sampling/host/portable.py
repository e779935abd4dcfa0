"""The samples of a machine without /proc (macOS, Windows), as far as psutil sees them.

Run-queue delay, pressure, cgroups and busy threads have no counterpart there and stay None.
"""

import sys
import time
from typing import Any

import psutil

from slowtok.proxy.sampling.host.host import Conditions, CoreTicks, Fields, cpu_usage
from slowtok.proxy.sampling.host.identity import MAX_CHARS, select_variables
from slowtok.proxy.sampling.host.port_owner import NO_LISTENER, NO_PERMISSION, is_elsewhere
from slowtok.proxy.sampling.host.procfs import CounterRate, total
from slowtok.proxy.sampling.host.programs import forwarder
from slowtok.proxy.sampling.host.redaction import redact_arguments

Line = dict[str, Any]

SEARCH_AGAIN_S = 10.0
"""psutil looks through every process for a port: tens to hundreds of milliseconds."""


def find_root(port: int) -> psutil.Process | str:
    """Return the process that listens on a port, or why it cannot be told."""
    try:
        found = [c.pid for c in psutil.net_connections("tcp") if _listens(c, port)]
    except psutil.AccessDenied:  # macOS shows other processes' sockets to root alone
        found = [p.pid for p in psutil.process_iter() if _process_listens(p, port)]
        if not found:
            return NO_PERMISSION
    if not found:
        return NO_LISTENER
    try:
        return psutil.Process(found[0]) if found[0] else NO_PERMISSION
    except psutil.Error:
        return NO_LISTENER


def _listens(connection: Any, port: int) -> bool:
    local = connection.laddr
    return connection.status == psutil.CONN_LISTEN and bool(local) and local.port == port


def _process_listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(_listens(c, port) for c in process.net_connections("tcp"))
    except psutil.Error:
        return False


class PortablePort:
    """Follows whatever process listens on one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._root: psutil.Process | None = None
        self._reason: str | None = None
        self._search_at_s = 0.0
        self._cpu: dict[int, CounterRate] = {}
        self._told: object = None
        self._members: list[psutil.Process] = []

    @property
    def pids(self) -> list[int]:
        """The server's processes, its root first; empty when there is none to be seen."""
        return [member.pid for member in self._members]

    @property
    def is_known(self) -> bool:
        """Return True if no other process of this machine can be the server's."""
        return self._root is not None or is_elsewhere(self._reason)

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the server's fields; none of them while no process is known."""
        try:
            if slow_tier:
                self._resolve(time.monotonic())
            return self._read_members() if self._root else {}
        except psutil.Error:
            self._root, self._reason, self._members, self._search_at_s = None, None, [], 0.0
            return {}

    def _resolve(self, now_s: float) -> None:
        if self._root is None and now_s >= self._search_at_s:
            self._search_at_s = now_s + SEARCH_AGAIN_S
            found = find_root(self._port)
            self._reason = found if isinstance(found, str) else _forwarder(found)
            self._root = found if isinstance(found, psutil.Process) and not self._reason else None
        if self._root is not None:
            self._root.status()  # raises when it has ended
            self._members = [self._root, *self._root.children(recursive=True)]

    def _read_members(self) -> Fields:
        uses = [self._read_one(member) for member in self._members]
        threads = [threads for _, threads in uses if threads is not None]
        busy_cores = [cores for cores, _ in uses if cores is not None]
        return {
            "server_cpu_cores": total([cores for cores, _ in uses]),
            "server_processes": len(uses),
            "server_main_process_cores": uses[0][0],
            "server_busiest_process_cores": max(busy_cores, default=None),
            "server_threads": sum(threads) if threads else None,
        }

    def _read_one(self, process: psutil.Process) -> tuple[float | None, int | None]:
        try:
            with process.oneshot():
                times, threads = process.cpu_times(), process.num_threads()
        except psutil.Error:
            return None, None
        rate = self._cpu.setdefault(process.pid, CounterRate())
        return rate.per_s(times.user + times.system, time.monotonic()), threads

    def changes(self) -> Line | None:
        """Return the line about the process if it differs from the last one returned."""
        state = (self._reason, self.pids)
        if state == self._told or (self._root is None and self._reason is None):
            return None
        self._told = state
        if self._root is None:
            return {"kind": "process", "port": self._port, "unmapped": self._reason}
        children = [_describe(member) for member in self._members[1:]]
        line = {"kind": "process", "port": self._port, "children": children}
        return {**line, **_describe(self._root), **_describe_root(self._root)}


def _forwarder(process: psutil.Process) -> str | None:
    try:
        argv = process.cmdline()
    except (psutil.Error, OSError):
        argv = []
    return forwarder(process.name(), argv)


def _describe(process: psutil.Process) -> Line:
    def attempt(read: Any) -> Any:
        try:
            return read()
        except (psutil.Error, OSError):
            return None

    arguments = redact_arguments(attempt(process.cmdline) or [])
    cmdline = [argument[:MAX_CHARS] for argument in arguments]
    return {"pid": process.pid, "name": attempt(process.name), "cmdline": cmdline}


def _describe_root(process: psutil.Process) -> Line:
    try:
        environment = select_variables(process.environ())
    except (psutil.Error, OSError):
        environment = {}
    try:
        return {"created_unix_s": process.create_time(), "environment": environment}
    except psutil.Error:
        return {"environment": environment}


class PortableHostReader:
    """Reads the machine's part of a host sample.

    What psutil calls swapped in is zero on Windows and every page-in on macOS: it is left out.
    """

    def __init__(self) -> None:
        self._cores: dict[int, CoreTicks] = {}

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the fields as they are now; nothing here is expensive."""
        cores = {core: _ticks(times) for core, times in enumerate(psutil.cpu_times(percpu=True))}
        before, self._cores = self._cores, cores
        usage = cpu_usage(before, cores)
        available_bytes = psutil.virtual_memory().available
        fields: Fields = {"cpu_cores": len(cores), "available_bytes": available_bytes}
        if usage is not None:
            fields["cpu_busy_cores"] = usage.busy_cores
            fields["busiest_core_ratio"] = usage.busiest_ratio
        return fields


def _ticks(times: Any) -> CoreTicks:
    busy_s = times.user + times.system + getattr(times, "nice", 0.0)
    return CoreTicks(int(busy_s * 100), 0, int((busy_s + times.idle) * 100))


def read_host_facts() -> dict[str, Any]:
    """Return the cores and the RAM of this machine, by the names of their `DeviceFacts` fields."""
    return {
        "os": {"win32": "windows", "darwin": "macos"}.get(sys.platform),
        "cpu_physical_cores": psutil.cpu_count(logical=False),
        "cpu_logical_cores": psutil.cpu_count(),
        "ram_bytes": psutil.virtual_memory().total,
    }


def read_conditions() -> Conditions:
    """Return what may change of the facts, by the names of their `DeviceFacts` fields."""
    battery = psutil.sensors_battery()
    plugged = None if battery is None else battery.power_plugged  # None: it cannot be told
    return {"on_battery": None if plugged is None else not plugged}


def process_name(pid: int) -> str | None:
    """Return a process's name, or None where it is not to be seen from here."""
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return None
