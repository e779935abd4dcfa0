"""Which other programs used the CPU, and how they are named."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.finding import Evidence
from slowtok.detectors.machine import CpuUser

LEAST_CORES = 0.1
"""No published source. Less is a desktop's background noise."""

MOST_NAMED = 3


def cpu_users(case: Case, phase: Phase) -> tuple[CpuUser, ...]:
    """Return the largest in a phase, else in the request; empty where nobody looked."""
    looks = [s.others for s in case.host_during(phase) if s.others is not None]
    looks = looks or [s.others for s in case.host if s.others is not None]
    return _mean(looks)


def _mean(looks: Sequence[Iterable[CpuUser]]) -> tuple[CpuUser, ...]:
    """Return each program's mean over all looks; one that is not in a look used little then."""
    newest: dict[str, CpuUser] = {}
    cores: dict[str, float] = {}
    for user in (user for look in looks for user in look):
        newest[user.name] = user
        cores[user.name] = cores.get(user.name, 0.0) + user.cpu_cores / len(looks)
    users = [replace(newest[name], cpu_cores=cores[name]) for name in newest]
    named = [user for user in users if user.cpu_cores >= LEAST_CORES]
    return tuple(sorted(named, key=lambda user: -user.cpu_cores)[:MOST_NAMED])


def programs(users: Iterable[CpuUser]) -> str:
    """Return who they are and what they used, in words."""
    return ", ".join(f"{user.name} ({_which(user)}, {user.cpu_cores:.1f} cores)" for user in users)


def used_by(users: Iterable[CpuUser]) -> tuple[Evidence, ...]:
    """Return what each of them used."""
    return tuple(
        Evidence(name=f"CPU used by {user.name}", value=user.cpu_cores, unit="cores")
        for user in users
    )


def stop_them(users: Sequence[CpuUser]) -> str:
    """Return what to do about them, without a full stop; by name where they are known."""
    if len(users) == 1 and users[0].processes == 1:
        whose, pid = "its", str(users[0].pid)
    else:
        whose, pid = "their", "PID"
    who = programs(users) or "the other CPU-heavy processes"
    return f"Stop {who} or lower {whose} priority (renice -n 19 -p {pid})"


def _which(user: CpuUser) -> str:
    if user.processes == 1:
        return f"process {user.pid}"
    return f"{user.processes} processes, the busiest {user.pid}"
