"""Finds the process that listens on a port: /proc/net/tcp names the socket, its files the owner.

Strategy: reading the socket table costs milliseconds, looking through the open files of all
processes tens of them, so that is done only for a socket that was not seen before. Behind Docker's
proxy it is whoever listens at the address in the container, whose processes the machine sees.

Where another user's files may not be read, its owner is the likeliest of those `Candidate`s. A
service runs as a user of its own (Ollama's installer makes one), slowtok as a person. What is
readable of everybody's processes then: name, command line, parent, user, and the sockets of the
network namespace that a process is in. The strongest kind of sign that any process shows decides,
and only if it leaves one process tree. Nothing is guessed between two.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from slowtok.proxy.sampling.host.process import ProcessStat, read_stat
from slowtok.proxy.sampling.host.procfs import read_whole
from slowtok.proxy.sampling.host.programs import (
    ENGINES,
    PORT_BY_ENVIRONMENT,
    REACH,
    container_address,
    engine,
    forwarder,
    says_port,
)

NO_LISTENER = "no listener"
NO_PERMISSION = "no permission"
NOT_VISIBLE = "not visible"
"""Every process could be looked into, and none had the socket: it is in another pid namespace."""

PROC = "/proc"

SAYS_IT, USUAL, NAMED, ALONE = range(4)
"""Signs, the strongest first: its command line names the port; it is an engine whose usual port
this is, or whose port its command line never tells; it is an engine or a forwarder; it is of the
socket's user, who is not root."""


class Candidate(NamedTuple):
    """A process that may be behind a port; `users` are those it shows itself as."""

    pid: int
    stat: ProcessStat
    argv: tuple[str, ...]
    users: frozenset[int]


def read_candidates(pids: Iterable[int], proc: str = PROC) -> list[Candidate]:
    """Return what is readable of these processes; the kernel's own threads have no arguments."""
    found = []
    for pid in pids:
        stat = read_stat(pid, proc)
        if stat is not None:
            words = (read_whole(f"{proc}/{pid}/cmdline") or b"").rstrip(b"\0").split(b"\0")
            argv = tuple(word.decode(errors="replace") for word in words if words != [b""])
            found.append(Candidate(pid, stat, argv, _users(pid, proc)))
    return found


def likeliest(
    candidates: Collection[Candidate],
    port: int,
    users: Collection[int],
    *,
    is_there: Callable[[Candidate], bool],
) -> Candidate | None:
    """Return the one process tree's root that shows the strongest sign, None where two do.

    `users` are those that the sockets belong to, `is_there` says whether a process is where the
    sockets are: it is asked of few.
    """
    signs = {c.pid: _sign(c, port, users) for c in candidates}
    for sign in (SAYS_IT, USUAL, NAMED, ALONE):
        shown = [c for c in candidates if signs[c.pid] == sign]
        # what started an engine (sudo, a shell) has its arguments too, and is not it
        roots = [c for c in _roots([c for c in shown if _is_known(c)] or shown) if is_there(c)]
        if roots:
            return roots[0] if len(roots) == 1 else None
    return None


def listens_in_own_network(pid: int, inodes: Collection[int], proc: str = PROC) -> bool:
    """Return True if a process is in the network namespace in which these sockets listen.

    One in a container may listen on a port of the same number there.
    """
    tables = (read_whole(f"{proc}/{pid}/net/{name}") or b"" for name in ("tcp", "tcp6"))
    seen = {line.split()[9] for table in tables for line in table.splitlines() if len(line) > 90}
    return any(str(inode).encode() in seen for inode in inodes)


def has_address(pid: int, address: str, proc: str = PROC) -> bool:
    """Return True if the network namespace of a process has an address of its own."""
    lines = (read_whole(f"{proc}/{pid}/net/fib_trie") or b"").splitlines()
    wanted = f"|-- {address}".encode()
    return any(line.strip() == wanted and b"host LOCAL" in after for line, after in pairwise(lines))


def _sign(candidate: Candidate, port: int, users: Collection[int]) -> int | None:
    """Return the sign that a process shows; None where something speaks against it."""
    if not candidate.argv or (users and not candidate.users & set(users)):
        return None
    said = says_port(candidate.argv, port)
    name = engine(candidate.stat.name, candidate.argv)
    if said is not None:
        return SAYS_IT if said else None
    if name in PORT_BY_ENVIRONMENT or (name is not None and ENGINES[name] == port):
        return USUAL
    if _is_known(candidate):
        return NAMED
    return ALONE if users and 0 not in users else None


def _is_known(candidate: Candidate) -> bool:
    return any(know(candidate.stat.name, candidate.argv) for know in (engine, forwarder))


def _roots(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out those whose parent is among them."""
    pids = {candidate.pid for candidate in candidates}
    return [c for c in candidates if c.stat.parent not in pids]


def _users(pid: int, proc: str) -> frozenset[int]:
    """Return the users of a process: its folder's owner, and what its status says.

    They differ where a process may not be traced: then root owns the folder.
    """
    found: set[int] = set()
    try:
        found.add(os.stat(f"{proc}/{pid}").st_uid)
    except OSError:
        return frozenset()
    status = read_whole(f"{proc}/{pid}/status") or b""
    line = (b"\n" + status).partition(b"\nUid:")[2].partition(b"\n")[0]
    return frozenset(found | {int(word) for word in line.split() if word.isdigit()})


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
    owner = choose_owner(held) if held else _likeliest_owner(refused, sockets, port)
    if owner is None:
        return NO_PERMISSION if refused else NOT_VISIBLE
    name = _forwarder(owner)
    behind = _in_container(owner.argv) if name else None
    if behind is not None:
        owner, name = behind, _forwarder(behind)
    return name or PortListener(owner.pid, owner.stat.name, owner.stat.started_ticks)


def is_elsewhere(found: object) -> bool:
    """Return True if no process here is the server: none listens, or only a tunnel elsewhere."""
    return found == NO_LISTENER or REACH.get(str(found)) == "elsewhere"


def choose_owner(owners: list[Candidate]) -> Candidate:
    """Return the server among those that have the socket open.

    Workers inherit the socket of the process that made them, so the one that started first is the
    server; process 1 comes last, as it may only have passed the socket on.
    """
    return min(owners, key=lambda owner: (owner.pid == 1, owner.stat.started_ticks, owner.pid))


def _likeliest_owner(
    pids: Iterable[int], sockets: tuple[Socket, ...], port: int
) -> Candidate | None:
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
    """Return True if a process has one of the sockets open; None when it may not be looked into."""
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
