"""Finds the process that listens on a port: /proc/net/tcp names the socket, its files the owner.

Strategy: reading the socket table costs milliseconds, looking through the open files of all
processes tens of them, so that is done only for a socket that was not seen before. Where another
user's files may not be read, its owner is the likeliest of those (`candidates`). Behind Docker's
proxy it is whoever listens at the address in the container, whose processes the machine sees.
"""

import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from slowtok.proxy.sampling.host.candidates import (
    Candidate,
    has_address,
    likeliest,
    listens_in_own_network,
    read_candidates,
)
from slowtok.proxy.sampling.host.procfs import read_whole
from slowtok.proxy.sampling.host.programs import REACH, container_address, forwarder

NO_LISTENER = "no listener"
NO_PERMISSION = "no permission"
NOT_VISIBLE = "not visible"
"""Every process could be looked into, and none had the socket: it is in another pid namespace."""


class Socket(NamedTuple):
    """A listening socket: the address as the kernel prints it, its inode and its user."""

    address: str
    inode: int
    user: int = 0


class PortListener(NamedTuple):
    """The process behind a port; with its start it stays identified when the pid is used again."""

    pid: int
    name: str
    started_ticks: int


def parse_listeners(table: str, port: int) -> list[Socket]:
    """Read the sockets that listen on a port from /proc/net/tcp or tcp6 (state 0A)."""
    pattern = rf"^ *\d+: ([0-9A-F]+):{port:04X} 0+:0000 0A \S+ \S+ \S+ +(\d+) +\d+ (\d+)"
    found = re.findall(pattern, table, re.MULTILINE)
    return [Socket(address, int(inode), int(user)) for address, user, inode in found]


def find_sockets(port: int) -> tuple[Socket, ...]:
    """Return every socket of this machine that listens on a port."""
    tables = (read_whole(f"/proc/net/{name}") or b"" for name in ("tcp", "tcp6"))
    return tuple(socket for table in tables for socket in parse_listeners(table.decode(), port))


def find_listener(sockets: tuple[Socket, ...], port: int) -> PortListener | str:
    """Return the process that serves a port by one of the sockets, or why it cannot be told.

    A forwarder is told by its name, unless the server behind it is a process that is seen here.
    """
    if not sockets:
        return NO_LISTENER
    links = {f"socket:[{socket.inode}]" for socket in sockets}
    owners: list[int] = []
    refused: list[int] = []
    for pid in _pids():
        holds = _holds(pid, links)
        if holds is not False:
            (owners if holds else refused).append(pid)
    held = read_candidates(owners)
    owner = choose_owner(held) if held else _likeliest(refused, sockets, port)
    if owner is None:
        return NO_PERMISSION if refused else NOT_VISIBLE
    name = _forwarder(owner)
    behind = _in_container(owner.argv) if name else None
    if behind is not None:
        owner, name = behind, _forwarder(behind)
    return name or PortListener(owner.pid, owner.stat.name, owner.stat.started_ticks)


def is_elsewhere(found: object) -> bool:
    """Say whether no process here is the server: none listens, or a tunnel to another machine."""
    return found == NO_LISTENER or REACH.get(str(found)) == "elsewhere"


def choose_owner(owners: list[Candidate]) -> Candidate:
    """Return the server among those that have the socket open.

    Workers inherit the socket of the process that made them, so the one that started first is the
    server; process 1 comes last, as it may only have passed the socket on.
    """
    return min(owners, key=lambda owner: (owner.pid == 1, owner.stat.started_ticks, owner.pid))


def _likeliest(pids: Iterable[int], sockets: tuple[Socket, ...], port: int) -> Candidate | None:
    inodes = {socket.inode for socket in sockets}
    return likeliest(
        read_candidates(pids),
        port,
        {socket.user for socket in sockets},
        is_there=lambda candidate: listens_in_own_network(candidate.pid, inodes),
    )


def _in_container(argv: tuple[str, ...]) -> Candidate | None:
    """Return the server at the address in a container that a forwarder passes on to."""
    target = container_address(argv)
    if target is None:
        return None
    address, port = target
    return likeliest(
        read_candidates(_pids()),
        port,
        (),
        is_there=lambda candidate: has_address(candidate.pid, address),
    )


def _forwarder(owner: Candidate) -> str | None:
    return forwarder(owner.stat.name, owner.argv)


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
