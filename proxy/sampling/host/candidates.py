"""Finds possible owners of a socket where processes' open files may not be read.

A service runs as a user of its own (Ollama's installer makes one), slowtok as a person. What is
readable of everybody's processes then: name, command line, parent, user, and the sockets of the
network namespace that a process is in.

Strategy: the strongest kind of sign that any process shows decides, and only if it leaves one
process tree. Nothing is guessed between two.
"""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from slowtok.proxy.sampling.host.process import ProcessStat, read_stat
from slowtok.proxy.sampling.host.procfs import read_whole
from slowtok.proxy.sampling.host.programs import (
    ENGINES,
    PORT_BY_ENVIRONMENT,
    engine,
    forwarder,
    says_port,
)

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
    """Say whether a process is in the network namespace in which these sockets listen.

    One in a container may listen on a port of the same number there.
    """
    tables = (read_whole(f"{proc}/{pid}/net/{name}") or b"" for name in ("tcp", "tcp6"))
    seen = {line.split()[9] for table in tables for line in table.splitlines() if len(line) > 90}
    return any(str(inode).encode() in seen for inode in inodes)


def has_address(pid: int, address: str, proc: str = PROC) -> bool:
    """Say whether the network namespace of a process has an address of its own."""
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
