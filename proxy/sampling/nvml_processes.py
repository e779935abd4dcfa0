"""Which processes hold memory on a GPU, and how busy each keeps it."""

import time
from typing import Any

from slowtok.proxy.sampling.nvml_calls import Device, Values

LAST_US = 1_000_000
"""How far back utilization is asked for: from 0 the driver gives samples many seconds old."""

MOST_PERCENT = 100
"""Drivers sometimes give far more; nvtop leaves those samples out too."""


def read_processes(device: Device) -> list[Values] | None:
    """Processes with memory on this GPU; one that is in both of the driver's lists counts once."""
    lists = [_ask_list(device, "Compute"), _ask_list(device, "Graphics")]
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
    newest = device.ask(f"nvmlDeviceGet{kind}RunningProcesses_v3")
    return device.ask(f"nvmlDeviceGet{kind}RunningProcesses_v2") if newest is None else newest


def read_busy_by_pid(device: Device) -> dict[int, Values]:
    """Each process's newest utilization; one that was idle for the last second is not there."""
    since_us = time.time_ns() // 1000 - LAST_US
    samples = device.ask(
        "nvmlDeviceGetProcessUtilization", since_us, key="nvmlDeviceGetProcessUtilization"
    )
    busy: dict[int, Values] = {}
    for sample in sorted(samples or (), key=lambda sample: sample.timeStamp):
        if sample.timeStamp > since_us and max(sample.smUtil, sample.memUtil) <= MOST_PERCENT:
            busy[sample.pid] = {
                "busy_ratio": sample.smUtil / 100,
                "memory_busy_ratio": sample.memUtil / 100,
            }
    return busy
