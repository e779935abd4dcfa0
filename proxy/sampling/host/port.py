"""Follows the server that listens on one port of a Linux machine, over its restarts."""

import time
from typing import Any

from slowtok.proxy.sampling.host.cgroup import CgroupReader
from slowtok.proxy.sampling.host.host import Fields
from slowtok.proxy.sampling.host.identity import describe
from slowtok.proxy.sampling.host.port_owner import (
    PortListener,
    Socket,
    find_listener,
    find_sockets,
    is_elsewhere,
)
from slowtok.proxy.sampling.host.process import TreeReader
from slowtok.proxy.sampling.host.procfs import ProcFiles

VERIFY_S = 120.0
LOOK_S = 5.0
"""How often the socket table is read, with and without a known listener. The kernel walks its
whole table of connections for that: 10 ms were measured on an idle machine with 24 GiB. The end of
a known listener is noticed at once without it."""

SEARCH_AGAIN_S = 30.0
"""How soon a socket without a visible owner is looked for again: the search costs tens of ms."""

Line = dict[str, Any]


class PortReader:
    """Follows whatever process listens on one port."""

    def __init__(self, files: ProcFiles, port: int) -> None:
        self._files = files
        self._port = port
        self._sockets: tuple[Socket, ...] | None = None
        self._found: PortListener | str | None = None
        self._tree: TreeReader | None = None
        self._cgroup: CgroupReader | None = None
        self._look_at_s = self._search_at_s = 0.0
        self._told: object = None

    @property
    def pids(self) -> list[int]:
        """The server's processes, its root first; empty when there is none to be seen."""
        return list(self._tree.members) if self._tree else []

    @property
    def is_known(self) -> bool:
        """Return True if no other process of this machine can be the server's."""
        return self._tree is not None or is_elsewhere(self._found)

    def read(self, *, slow_tier: bool) -> Fields:
        """Return the server's fields; none of them while no process is known."""
        if slow_tier:
            self._resolve(time.monotonic())
        if self._tree is None or self._cgroup is None:
            return {}
        fields = self._tree.read(slow_tier=slow_tier)
        if fields is None:
            self._forget()
            return {}
        return fields | self._cgroup.read(slow_tier=slow_tier)

    def changes(self) -> Line | None:
        """Return the line about the process if it differs from the last one returned."""
        state = (self._found, tuple(sorted(self.pids)))
        if self._found is None or state == self._told:
            return None
        self._told = state
        if isinstance(self._found, PortListener):
            return describe(self._port, self._found, self.pids)
        return {"kind": "process", "port": self._port, "unmapped": self._found}

    def _resolve(self, now_s: float) -> None:
        if now_s < self._look_at_s:
            return
        sockets = find_sockets(self._port)
        if sockets != self._sockets or (self._tree is None and now_s >= self._search_at_s):
            self._search(sockets, now_s)
        self._look_at_s = now_s + (VERIFY_S if self._tree else LOOK_S)

    def _search(self, sockets: tuple[Socket, ...], now_s: float) -> None:
        self._search_at_s = now_s + SEARCH_AGAIN_S
        self._sockets, self._found = sockets, find_listener(sockets, self._port)
        self._tree = self._cgroup = None
        if isinstance(self._found, PortListener):
            pid = self._found.pid
            self._tree = TreeReader(self._files, pid, self._found.started_ticks)
            self._cgroup = CgroupReader(self._files, pid)

    def _forget(self) -> None:
        self._tree = self._cgroup = self._sockets = self._found = None
        self._look_at_s = 0.0
