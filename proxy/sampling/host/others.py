"""Samples other programs that use the CPU: the few largest, looked at seldom.

Strategy: two looks at every process, a second or more apart, and what each has used in between.
A look at some hundred processes takes milliseconds, so looks hold to a share of their own; and
processes of one name count together: a build is one program, not fifty.
Only the names of programs leave this module, never their arguments.
"""

import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

MUCH_CORES = 0.3
"""Below this others are not looked for. Heuristic."""

MAX_NAMED = 3
LEAST_CORES = 0.05
"""Of one program; less is background noise. Heuristic."""

SHORTEST_S = 1.0
"""Between two looks: a clock tick of 10 ms is then 1 % of a core."""

SHARE = 0.002
"""Of one core that looking may take; `budget` has all of sampling stay below 0.008."""

MAX_CHARS = 64

OWN_NAMES = frozenset({"slowtok", "slowtok.exe"})


class Process(NamedTuple):
    """One process; `identity` tells it from a later one with its pid."""

    pid: int
    parent: int
    name: str
    cpu_s: float
    identity: float


ProcessListing = Callable[[], Iterable[Process]]


def read_processes() -> Iterable[Process]:
    """Return every process that can be seen from here."""
    return _from_proc() if sys.platform == "linux" else _from_psutil()


def _from_proc() -> Iterable[Process]:
    from slowtok.proxy.sampling.host.process import read_stat  # noqa: PLC0415 - Linux alone has it

    for entry in os.listdir("/proc"):
        stat = read_stat(int(entry)) if entry.isdigit() else None
        if stat is not None:
            yield Process(int(entry), stat.parent, stat.name, stat.cpu_s, stat.started_ticks)


def _from_psutil() -> Iterable[Process]:
    import psutil  # noqa: PLC0415 - costs memory, and Linux does not need it

    for process in psutil.process_iter(["ppid", "name", "cpu_times", "create_time"]):
        found = process.info
        if process.pid and None not in found.values():  # pid 0 is Windows' idle time
            cpu_s = found["cpu_times"].user + found["cpu_times"].system
            name, parent = found["name"], found["ppid"]
            yield Process(process.pid, parent, name, cpu_s, found["create_time"])


def own_family(processes: Iterable[Process], own: int) -> set[int]:
    """Return the pids of slowtok: the process `own`, all that descend from it, and others' slowtok.

    Of another slowtok only what goes by its name: it may have begun an engine, as the demo does.
    """
    children: dict[int, list[int]] = {}
    family = {own}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
        if process.name in OWN_NAMES:
            family.add(process.pid)
    descent = [own]
    for pid in descent:  # grows while it is walked
        new = [child for child in children.get(pid, ()) if child not in descent]
        descent += new
        family.update(new)
    return family


def cores_used(
    before: Collection[Process], now: Collection[Process], elapsed_s: float
) -> dict[int, float]:
    """Return what each process used, in cores; all that a new one used was used in between."""
    used_before_s = {(p.pid, p.identity): p.cpu_s for p in before}
    return {p.pid: (p.cpu_s - used_before_s.get((p.pid, p.identity), 0.0)) / elapsed_s for p in now}


def largest(
    processes: Iterable[Process], cores: Mapping[int, float], without: Collection[int]
) -> list[dict[str, Any]]:
    """Return the few programs that used most, as `CpuUser` has them, the largest first."""
    by_name: dict[str, list[Process]] = {}
    for process in processes:
        if process.pid not in without and cores.get(process.pid, 0.0) > 0:
            by_name.setdefault(process.name[:MAX_CHARS], []).append(process)
    programs: list[dict[str, Any]] = [
        {
            "name": name,
            "pid": max(alike, key=lambda p: cores[p.pid]).pid,
            "cpu_cores": round(sum(cores[p.pid] for p in alike), 3),
            "processes": len(alike),
        }
        for name, alike in by_name.items()
    ]
    named = [program for program in programs if program["cpu_cores"] >= LEAST_CORES]
    return sorted(named, key=lambda program: -program["cpu_cores"])[:MAX_NAMED]


class Others:
    """Looks at all processes when that is due, and keeps the last look to compare with.

    `own` is slowtok's first process.
    """

    def __init__(
        self,
        own: int,
        look: ProcessListing = read_processes,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._own, self._look = own, look
        self._clock, self._cpu_clock = clock, cpu_clock
        self._before: tuple[float, tuple[Process, ...]] | None = None
        self._due_at_s = self._soonest_at_s = 0.0

    def begin(self) -> None:
        """A request begins: the next look is due as soon as its own share allows."""
        self._due_at_s = min(self._due_at_s, self._soonest_at_s)

    def read(self, period_s: float) -> Callable[[Collection[int]], list[dict[str, Any]]] | None:
        """Look if that is due; return what names the largest without some pids, None otherwise.

        The first look, and one after a long pause, has nothing to compare with.
        """
        now_s = self._clock()
        if now_s < self._due_at_s:
            return None
        begun_cpu_s = self._cpu_clock()
        now = tuple(self._look())
        cost_s = self._cpu_clock() - begun_cpu_s
        before, self._before = self._before, (now_s, now)
        # the first of two looks is followed at once by the second, so both are paid for then
        self._soonest_at_s = now_s + max(SHORTEST_S, 2 * cost_s / SHARE)
        if before is None or now_s - before[0] > 2 * max(period_s, 2 * cost_s / SHARE):
            self._due_at_s = now_s + SHORTEST_S
            return None
        self._due_at_s = max(now_s + period_s, self._soonest_at_s)
        cores = cores_used(before[1], now, now_s - before[0])
        own = own_family(now, self._own)
        return lambda pids: largest(now, cores, {*pids, *own})
