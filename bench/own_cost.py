"""What slowtok costs by itself: start, memory, sampling, a diagnosis."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench import diagnosis, sampling
from bench.processes import MIB, resident_bytes
from bench.report import shown
from bench.ways import RELAY_CORE, Way, free_port, slowtok_command, started


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """What slowtok costs without a load. `sampling_ratio` is idle and active, by machine."""

    start_s: float
    resident_mib: float
    all_resident_mib: float
    diagnosis_ms: dict[str, float]
    sampling_ratio: dict[str, tuple[float, float]]

    def table(self) -> list[str]:
        """Return it as a Markdown table."""
        rows = (f"| {what} | {cost} |" for what, cost in self._rows())
        return ["| slowtok by itself | |", "|---|--:|", *rows]

    def _rows(self) -> Iterable[tuple[str, str]]:
        yield "from the command to the open port", f"{self.start_s:.2f} s"
        yield "memory, idle: the proxy", f"{self.resident_mib:.0f} MiB"
        yield "memory, idle: all processes", f"{self.all_resident_mib:.0f} MiB"
        for name, taken_ms in self.diagnosis_ms.items():
            what = f"CPU of a diagnosis with its record: a minute on a GPU, {name}"
            yield what, f"{shown(taken_ms)} ms"
        for name, (idle, active) in self.sampling_ratio.items():
            yield f"sampling, share of a core, idle: {name}", f"{100 * idle:.2f} %"
            yield f"sampling, with a request there: {name}", f"{100 * active:.2f} %"


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
