"""Processes on an AMD GPU: the memory that each holds, how much was moved out, how busy it is.

Strategy: the kernel tells it in the fdinfo of every descriptor of /dev/dri, and finding those costs
a readlink for each descriptor of each process. So a watched server is searched whole every 2 s, all
other processes a few at a time, and descriptors once found are only read again. What other users'
processes hold is refused to all but root; the compute driver (KFD) tells at least their memory.

Sources: the kernel's drm-usage-stats.rst and amdgpu_fdinfo.c. A descriptor that was duplicated or
handed on has the same `drm-client-id`: it counts once.
"""

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slowtok.proxy.sampling.host.procfs import CounterRate, ProcFiles, total

Values = dict[str, Any]

LOOK_S = 2.0
"""How often descriptors are searched for: the period of an idle machine."""

SEARCH_S = 0.002
"""What one search among the other processes may take: 10,000 descriptors are 35 ms of work on a
small machine, so that a desktop's are through after half a minute."""

UNITS = {b"": 1, b"KiB": 1 << 10, b"MiB": 1 << 20}
COMPUTING = (b"drm-engine-gfx", b"drm-engine-compute")

Key = tuple[str, str]
"""A GPU's PCI address and a client on it."""


class DrmClient(NamedTuple):
    """One client of one GPU; `busy_ns` is None for work that is not the kernel's (ROCm)."""

    key: Key
    vram_bytes: int | None
    host_bytes: int | None
    evicted_bytes: int | None
    busy_ns: int | None


class DrmHolder(NamedTuple):
    """A client, and the share of time that it kept the GPU busy."""

    client: DrmClient
    busy_ratio: float | None


def parse_client(fdinfo: bytes) -> DrmClient | None:
    """Read one fdinfo file; None for a descriptor of anything but amdgpu."""
    pairs = (line.partition(b":") for line in fdinfo.splitlines())
    fields = {name: value.strip() for name, _, value in pairs}
    if fields.get(b"drm-driver") != b"amdgpu" or b"drm-pdev" not in fields:
        return None
    vram_bytes = _size(fields, b"drm-memory-vram", b"drm-resident-vram")
    evicted_bytes = _size(fields, b"amd-evicted-vram")
    requested_bytes = _size(fields, b"amd-requested-vram")
    if evicted_bytes is None and None not in (requested_bytes, vram_bytes):
        evicted_bytes = max((requested_bytes or 0) - (vram_bytes or 0), 0)
    engines = [int(fields[name].split()[0]) for name in COMPUTING if name in fields]
    return DrmClient(
        key=(fields[b"drm-pdev"].decode(), fields.get(b"drm-client-id", b"").decode()),
        vram_bytes=vram_bytes,
        host_bytes=_size(fields, b"drm-memory-gtt", b"drm-resident-gtt"),
        evicted_bytes=evicted_bytes,
        busy_ns=sum(engines) if engines else None,
    )


def _size(fields: dict[bytes, bytes], *names: bytes) -> int | None:
    for name in names:
        number, _, unit = fields.get(name, b"").partition(b" ")
        if number.isdigit() and unit in UNITS:
            return int(number) * UNITS[unit]
    return None


class Clients:
    """The clients of all AMD GPUs, by process."""

    def __init__(self, files: ProcFiles, root: str) -> None:
        self._files = files
        self._proc = f"{root}/proc"
        self._paths: dict[int, list[str]] = {}
        self._found: dict[int, list[DrmHolder]] = {}
        self._busy: dict[tuple[int, Key], CounterRate] = {}
        self._to_search: deque[int] = deque()
        self._look_at_s = 0.0
        self._servers: set[int] = set()

    def read(self, servers: set[int], now_s: float) -> dict[int, list[DrmHolder]]:
        """Return the clients by pid; those of `servers` as they are now, others within `LOOK_S`."""
        looking = now_s >= self._look_at_s or not servers <= self._servers
        if looking:
            self._look_at_s = now_s + LOOK_S
            self._servers = set(servers)
            self._search_all()
        self._found = {
            pid: self._read(pid, now_s) if looking or pid in servers else self._found.get(pid, [])
            for pid in self._paths
        }
        return self._found

    def _search_all(self) -> None:
        for pid in self._servers:
            self._search(pid)
        if not self._to_search:
            self._to_search.extend(list_pids(self._proc))
        until_s = time.perf_counter() + SEARCH_S
        while self._to_search:
            pid = self._to_search.popleft()
            if pid not in self._servers:
                self._search(pid)
            if time.perf_counter() > until_s:
                break
        present = {(pid, f.client.key) for pid, found in self._found.items() for f in found}
        self._busy = {key: rate for key, rate in self._busy.items() if key in present}

    def _search(self, pid: int) -> None:
        paths = find_paths(self._proc, pid)
        for gone in set(self._paths.pop(pid, ())).difference(paths):
            self._files.drop(gone)
        if paths:
            self._paths[pid] = paths

    def _read(self, pid: int, now_s: float) -> list[DrmHolder]:
        by_path: dict[str, DrmHolder] = {}
        keys = set()
        for path in self._paths[pid]:
            client = parse_client(self._files.read(path) or b"")
            if client is None or client.key in keys:
                self._files.drop(path)
                continue
            keys.add(client.key)
            by_path[path] = DrmHolder(client, self._busy_ratio(pid, client, now_s))
        self._paths[pid] = list(by_path)
        return list(by_path.values())

    def _busy_ratio(self, pid: int, client: DrmClient, now_s: float) -> float | None:
        rate = self._busy.setdefault((pid, client.key), CounterRate())
        ns_per_s = rate.per_s(client.busy_ns, now_s)
        return None if ns_per_s is None else min(ns_per_s / 1e9, 1.0)


def list_pids(proc: str) -> list[int]:
    """Return all processes that can be seen."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []


def find_paths(proc: str, pid: int) -> list[str]:
    """Return the fdinfo of a process's descriptors of /dev/dri; none where they are not shown."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)  # a Path for each would cost ten times as much
    except OSError:  # it has ended, or belongs to another user
        return []
    return [f"{proc}/{pid}/fdinfo/{n}" for n in names if _is_gpu(f"{folder}/{n}")]


def _is_gpu(descriptor: str) -> bool:
    try:
        return os.readlink(descriptor).startswith("/dev/dri/")
    except OSError:  # closed meanwhile
        return False


def read_kfd_memory(files: ProcFiles, root: str, gpu_id: int) -> dict[int, int]:
    """Return the memory on one GPU by pid, of whatever user, as the compute driver counts it."""
    by_pid = {}
    for folder in Path(root, "sys/class/kfd/kfd/proc").glob("*"):
        text = (files.read(f"{folder}/vram_{gpu_id}") or b"").strip()
        if folder.name.isdigit() and text.isdigit():
            by_pid[int(folder.name)] = int(text)
    return by_pid


def processes_on(
    pdev: str,
    clients: dict[int, list[DrmHolder]],
    servers: set[int],
    name_of: Callable[[int], str | None],
) -> list[Values]:
    """Return the processes on one GPU; a client that several share is a server's, or the oldest's.

    `servers` are the pids of the watched servers.
    """
    processes = []
    counted: set[Key] = set()
    for pid in sorted(clients, key=lambda pid: (pid not in servers, pid)):
        own = [f for f in clients[pid] if f.client.key[0] == pdev and f.client.key not in counted]
        counted.update(found.client.key for found in own)
        if own:
            processes.append(_process(pid, own) | {"is_server": pid in servers})
    return [process | {"name": name_of(process["pid"])} for process in processes]


def _process(pid: int, own: list[DrmHolder]) -> Values:
    busy = total([found.busy_ratio for found in own])
    return {
        "pid": pid,
        "memory_bytes": total([found.client.vram_bytes for found in own]),
        "host_memory_bytes": total([found.client.host_bytes for found in own]),
        "evicted_bytes": total([found.client.evicted_bytes for found in own]),
        "busy_ratio": None if busy is None else min(busy, 1.0),
    }
