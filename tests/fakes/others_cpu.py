"""How much of this machine other programs used while a test ran."""

import time

import psutil


class OthersCpu:
    """A meter of the CPU that is used neither by this process nor by what it started.

    It begins when it is made. On a machine whose cores are lent out, the time that the host kept
    for itself counts too: it is missing to the test just the same.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._began = _machine_cpu_s() - _own_cpu_s()

    def cores(self) -> float:
        """Return how many cores others used on average since this meter was made."""
        used_s = _machine_cpu_s() - _own_cpu_s() - self._began
        return used_s / (time.monotonic() - self._began_s)


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + getattr(times, "steal", 0.0)


def _own_cpu_s() -> float:
    """CPU time of this process, of its children that have ended, and of those that still run."""
    this = psutil.Process()
    times = this.cpu_times()
    used_s = times.user + times.system + times.children_user + times.children_system
    for child in this.children(recursive=True):
        try:
            own = child.cpu_times()
        except psutil.NoSuchProcess:
            continue  # ended meanwhile; whoever started it has its time by now
        used_s += own.user + own.system + own.children_user + own.children_system
    return used_s
