"""What slowtok costs by itself: start, memory, sampling, a diagnosis."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench import diagnosis, sampling
from bench.processes import MIB, resident_bytes
from bench.ways import RELAY_CORE, Way, free_port, slowtok_command, started


def start_s(engine: int, times: int) -> list[float]:
    """Return the seconds from the command to the open port, of each of `times` starts."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as state:
            port, begin_s = free_port(), time.monotonic()
            with started(slowtok_command(port, engine, state), port, RELAY_CORE):
                taken.append(time.monotonic() - begin_s)
    return taken


def resident_mib(way: Way) -> tuple[float, float]:
    """Return the memory of the relaying process, and of all processes."""
    processes = way.processes()
    return resident_bytes(processes[:1]) / MIB, resident_bytes(processes) / MIB


def sampling_ratio(seconds: float) -> dict[str, tuple[float, float]]:
    """Return the sampling process's share of a core, idle and active, by machine."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, sampling.engine() as port:
        for machine in sampling.machines(Path(folder)):
            found[machine.name] = asyncio.run(sampling.measure(machine, port, seconds))
    return found


def diagnosis_ms(times: int) -> dict[str, float]:
    """Return the median CPU milliseconds of a diagnosis with its record."""
    return {name: statistics.median(taken) for name, taken in diagnosis.measure(times).items()}
