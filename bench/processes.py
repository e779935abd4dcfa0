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


def cpu_s(processes: list[psutil.Process]) -> float:
    """Return the CPU seconds that these have used; to the nanosecond where the kernel tells."""
    return sum(_cpu_s(process) for process in processes)


def resident_bytes(processes: list[psutil.Process]) -> int:
    """Return the resident memory of these."""
    return sum(process.memory_info().rss for process in processes)


def keep_to(*cores: int) -> None:
    """Keep this process, and those it starts, to cores; where there is but one, do nothing."""
    if sys.platform == "linux" and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, cores)


def _cpu_s(process: psutil.Process) -> float:
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError):
        pass
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
