"""What more workers bring where there are cores to spare."""

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.processes import keep_to
from bench.report import shown
from bench.ways import LOAD_CORE, Way, free_port, slowtok_command, started, state_folder
from bench.workloads import Figures, paced, saturated, settle

FEWEST_CORES = 4  # one for the load, one for the process that looks on, two for workers
WORKERS = (1, 2, 4)
STREAMS, RATE, SECONDS = 400, 40_000, 2.1
SHOWN = ("tokens/s", "latency p50, µs", "latency p99, µs")


def workers_table(engine: int, rounds: int) -> list[str]:
    """Return the figures as a Markdown table, or why there are none."""
    cores = os.cpu_count() or 1
    if cores < FEWEST_CORES:
        said = f"it takes {FEWEST_CORES} cores, here are {cores}."
        return [f"What several workers (`--workers`) bring was not measured: {said}"]
    found = measure(engine, rounds, [n for n in WORKERS if n + 2 <= cores])
    load = f"{RATE:,} tokens/s in {STREAMS} streams"
    lines = [
        f"| workers | tokens/s without a pause | latency p50, µs, at {load} | latency p99, µs |",
        "|---|--:|--:|--:|",
    ]
    for name, rounds_of in found.items():
        cells = [shown(statistics.median([r[figure] for r in rounds_of])) for figure in SHOWN]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, "", "The line `direct` is all that client and engine can do on their core."]


def measure(engine: int, rounds: int, workers: list[int]) -> dict[str, list[Figures]]:
    """Return the figures of each round: asked directly, and through so many workers."""
    found: dict[str, list[Figures]] = {}
    with several(engine, workers) as ways:
        keep_to(LOAD_CORE)
        for _ in range(rounds):
            for way in ways:
                pace = paced(way, streams=STREAMS, rate=RATE, seconds=SECONDS)
                settle(way)
                figures = pace | saturated(way, streams=32, tokens=2100)
                settle(way)
                found.setdefault(way.name, []).append(figures)
    return found


@contextlib.contextmanager
def several(engine: int, workers: list[int]) -> Iterator[list[Way]]:
    """Run a slowtok for each number of workers, on all cores but that of the load."""
    others = [core for core in range(os.cpu_count() or 1) if core != LOAD_CORE]
    ways = [Way("direct", engine)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for count in workers:
            port = free_port()
            state = state_folder(folder / str(count))
            command = slowtok_command(port, engine, state, workers=count)
            process = stack.enter_context(started(command, port, *others))
            ways.append(Way("none: one process" if count == 1 else str(count), port, process.pid))
        for way in ways:
            settle(way)  # all that a start brings with it is over
        yield ways
