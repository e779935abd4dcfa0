"""Which process listens on a port: /proc/net/tcp names the socket, a process's files its owner.

Strategy: reading the socket table costs milliseconds, looking through the open files of all
processes tens of them, so that is done only for a socket that was not seen before.
"""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from slowtok.proxy.sampling.process import read_stat
from slowtok.proxy.sampling.procfs import read_whole

FORWARDERS = {
    "docker-proxy": "docker-proxy",
    "dockerd": "docker-proxy",
    "rootlessport": "rootlessport",
    "rootlesskit": "rootlessport",
    "slirp4netns": "slirp4netns",
    "pasta": "pasta",
    "pasta.avx2": "pasta",
    "gvproxy": "gvproxy",
    "wslrelay.exe": "wslrelay",
    "ssh": "ssh",
    "sshd": "ssh",
    "socat": "socat",
    "kubectl": "kubectl",
}
"""Programs that listen for a server that runs elsewhere: their own CPU and memory say nothing."""

NO_LISTENER = "no listener"
NO_PERMISSION = "no permission"
NOT_VISIBLE = "not visible"
"""Every process could be looked into, and none had the socket: it is in another pid namespace."""


class Socket(NamedTuple):
    """A listening socket: the address as the kernel prints it, and its inode."""

    address: str
    inode: int


class Listener(NamedTuple):
    """The process behind a port; with its start it stays identified when the pid is used again."""

    pid: int
    name: str
    started_ticks: int


def parse_listeners(table: str, port: int) -> list[Socket]:
    """Read the sockets that listen on a port from /proc/net/tcp or tcp6 (state 0A)."""
    pattern = rf"^ *\d+: ([0-9A-F]+):{port:04X} 0+:0000 0A \S+ \S+ \S+ +\d+ +\d+ (\d+)"
    return [Socket(a, int(inode)) for a, inode in re.findall(pattern, table, re.MULTILINE)]


def find_sockets(port: int) -> tuple[Socket, ...]:
    """Return every socket of this machine that listens on a port."""
    tables = (read_whole(f"/proc/net/{name}") or b"" for name in ("tcp", "tcp6"))
    return tuple(socket for table in tables for socket in parse_listeners(table.decode(), port))


def find_listener(sockets: tuple[Socket, ...]) -> Listener | str:
    """Return the process that owns one of the sockets, or why it cannot be told."""
    if not sockets:
        return NO_LISTENER
    links = {f"socket:[{socket.inode}]" for socket in sockets}
    owners: list[Listener] = []
    refused = False
    for pid in _pids():
        holds = _holds(pid, links)
        refused = refused or holds is None
        stat = read_stat(pid) if holds else None
        if stat is not None:
            owners.append(Listener(pid, stat.name, stat.started_ticks))
    if not owners:
        return NO_PERMISSION if refused else NOT_VISIBLE
    return choose_owner(owners)


def choose_owner(owners: list[Listener]) -> Listener | str:
    """Return the server among those that have the socket open, or the forwarder's name.

    Workers inherit the socket of the process that made them, so the one that started first is the
    server; process 1 comes last, as it may only have passed the socket on.
    """
    first = min(owners, key=lambda owner: (owner.pid == 1, owner.started_ticks, owner.pid))
    return FORWARDERS.get(first.name, first)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _holds(pid: int, links: set[str]) -> bool | None:
    """Say whether a process has one of the sockets open; None when it may not be looked into."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:
        return None
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") in links:
                return True
        except OSError:
            continue
    return False
