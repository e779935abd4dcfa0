"""CPU time and memory of a process with all its children, and the cores they may use."""

import os
import sys
from pathlib import Path

import psutil

MIB, KIB = 2**20, 2**10


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


Spent = dict[int, float]  # CPU seconds by thread, or by process where threads are not told


def spent_s(processes: list[psutil.Process]) -> Spent:
    """Return the CPU seconds that these have used; to the nanosecond where the kernel tells."""
    spent: Spent = {}
    for process in processes:
        spent |= _spent_s(process)
    return spent


def between_s(before: Spent, after: Spent) -> float:
    """Return what was spent between two looks; what a thread did that has ended is not known."""
    return sum(now_s - before.get(thread, 0.0) for thread, now_s in after.items())


def resident_bytes(processes: list[psutil.Process]) -> int:
    """Return the resident memory of these."""
    return sum(process.memory_info().rss for process in processes)


def keep_to(*cores: int) -> None:
    """Keep this process, and those it starts, to cores; where there is but one, do nothing."""
    if sys.platform == "linux" and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, cores)


def _spent_s(process: psutil.Process) -> Spent:
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return {
            int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks
        }
    except (OSError, IndexError):
        pass
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return {}
    return {process.pid: times.user + times.system}
