"""CPU time and memory of a process with all its children, and the cores they may use."""

import os
import sys
import time

import psutil

MIB, KIB = 2**20, 2**10


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def spent_s(processes: list[psutil.Process]) -> float:
    """Return the CPU seconds that these have used; to the nanosecond where the kernel tells."""
    return sum(map(_spent_s, processes))


def resident_bytes(processes: list[psutil.Process]) -> list[int]:
    """Return the resident memory of each of these."""
    return [process.memory_info().rss for process in processes]


def keep_to(*cores: int) -> None:
    """Keep this process, and those it starts, to cores; where there is but one, do nothing."""
    if sys.platform == "linux" and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, cores)


def _spent_s(process: psutil.Process) -> float:
    if sys.platform == "linux":
        return time.clock_gettime(
            (~process.pid << 3) | 2
        )  # the process's own clock: CPUCLOCK_SCHED
    times = process.cpu_times()
    return float(times.user + times.system)
