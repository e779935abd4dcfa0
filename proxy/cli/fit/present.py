"""This machine, looked at once through the sampling process: its GPUs, its RAM as once measured.

Nothing runs on a GPU, and the bandwidth of RAM is only read where `slowtok serve` has kept it.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.inspection.look import NOT_LOOKED, POLL_S, READY_S
from slowtok.proxy.sampling.host.ram import kept_bytes_per_s
from slowtok.proxy.sampling.supervisor import Sampler


async def look_at_machine(state_path: Path) -> DeviceFacts:
    """Return what is here; without GPUs where none was seen in time."""
    sampler = Sampler()
    try:
        await sampler.start()
        sampler.set_active(True)
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                while sampler.status()["gpu_unavailable"] == NOT_LOOKED:  # noqa: ASYNC110 - as in doctor
                    await asyncio.sleep(POLL_S)
        device = sampler.device()
    finally:
        await sampler.stop()
    kept = kept_bytes_per_s(state_path)
    return replace(
        device,
        ram_bandwidth_bytes_per_s=kept,
        ram_bandwidth_source="measured" if kept else None,
        ram_bytes=device.ram_bytes or psutil.virtual_memory().total,
    )
