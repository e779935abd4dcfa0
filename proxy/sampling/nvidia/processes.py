"""Processes that hold memory on a GPU, and how busy each keeps it."""

import time
from collections.abc import Callable
from typing import Any

from slowtok.proxy.sampling.nvidia.calls import Device, Values

LAST_US = 1_000_000
"""How far back utilization is asked for: from 0 the driver gives samples many seconds old."""

MAX_PERCENT = 100
"""Drivers sometimes give far more; nvtop leaves those samples out too."""

KINDS = ("Compute", "Graphics")
VERSIONS = ("v3", "v2")

FEEDS = {
    "processes": tuple(
        f"nvmlDeviceGet{kind}RunningProcesses_{version}" for kind in KINDS for version in VERSIONS
    )
}


def read_known_processes(
    device: Device,
    servers: set[int] | None,
    process_name: Callable[[int], str | None],
    *,
    busy: bool,
) -> list[Values] | None:
    """Processes with their names and shares; None for `servers` says pids cannot be matched."""
    processes = read_processes(device)
    busy_by_pid = read_busy_by_pid(device) if busy and processes else {}
    for process in processes or ():
        pid = process["pid"]
        # the driver gives the host's pids: in a container the same number is another process
        process["name"] = None if servers is None else process_name(pid)
        process["is_server"] = None if servers is None else pid in servers
        process.update(busy_by_pid.get(pid, {}))
    return processes


def read_processes(device: Device) -> list[Values] | None:
    """Processes with memory on this GPU; one that is in both of the driver's lists counts once."""
    lists = [_ask_list(device, kind) for kind in KINDS]
    if all(processes is None for processes in lists):
        return None
    by_pid: dict[int, int | None] = {}
    for process in (process for processes in lists for process in processes or ()):
        known = by_pid.get(process.pid)
        memory = process.usedGpuMemory  # None where the driver hides it (Windows)
        by_pid[process.pid] = max(known or 0, memory) if memory is not None else known
    return [{"pid": pid, "memory_bytes": memory} for pid, memory in by_pid.items()]


def _ask_list(device: Device, kind: str) -> Any:
    # each by its version: without one, pynvml turns an old driver into an error of another family
    answers = (device.ask(f"nvmlDeviceGet{kind}RunningProcesses_{version}") for version in VERSIONS)
    return next((answer for answer in answers if answer is not None), None)


def read_busy_by_pid(device: Device) -> dict[int, Values]:
    """Each process's newest utilization; one that was idle for the last second is not there."""
    since_us = time.time_ns() // 1000 - LAST_US
    samples = device.ask(
        "nvmlDeviceGetProcessUtilization", since_us, key="nvmlDeviceGetProcessUtilization"
    )
    busy: dict[int, Values] = {}
    for sample in sorted(samples or (), key=lambda sample: sample.timeStamp):
        if sample.timeStamp > since_us and max(sample.smUtil, sample.memUtil) <= MAX_PERCENT:
            busy[sample.pid] = {
                "busy_ratio": sample.smUtil / 100,
                "memory_busy_ratio": sample.memUtil / 100,
            }
    return busy
