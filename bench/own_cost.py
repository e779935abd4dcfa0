"""What slowtok costs by itself: start, memory, sampling, a diagnosis."""

import asyncio
import contextlib
import http.client
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from bench import diagnosis, sampling
from bench.client import MAX_S, Client, make_request
from bench.processes import MIB, resident_bytes
from bench.report import shown
from bench.ways import RELAY_CORE, Way, free_port, slowtok_command, started, state_folder

A_RECORD = b'"cleared"'  # a name that is in each record once, and in no other line
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """What slowtok costs without a load; `resident_mib` of each process, the greatest first.

    `sampling_ratio` is idle and active, by machine.
    """

    start_s: float
    record_ms: float
    resident_mib: list[float]
    diagnosis_ms: dict[str, float]
    sampling_ratio: dict[str, tuple[float, float]]

    def table(self) -> list[str]:
        """Return it as a Markdown table."""
        rows = (f"| {what} | {cost} |" for what, cost in self._rows())
        return ["| slowtok by itself | |", "|---|--:|", *rows]

    def _rows(self) -> Iterable[tuple[str, str]]:
        yield "from the command to the first reply", f"{self.start_s:.2f} s"
        yield "from a stream's last byte to its record in the log", f"{self.record_ms:.0f} ms"
        each = " + ".join(f"{mib:.0f}" for mib in self.resident_mib)
        yield f"memory, idle, {len(self.resident_mib)} processes", f"{each} MiB"
        for name, taken_ms in self.diagnosis_ms.items():
            what = f"CPU of a diagnosis with its record: a minute on a GPU, {name}"
            yield what, f"{shown(taken_ms)} ms"
        for name, (idle, active) in self.sampling_ratio.items():
            yield f"sampling, share of a core, idle: {name}", f"{100 * idle:.2f} %"
            yield (
                f"sampling, share of a core, while a request runs: {name}",
                f"{100 * active:.2f} %",
            )


def start_s(engine: int, times: int) -> list[float]:
    """Return the seconds from the command to the first reply, of each of `times` starts."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as state:
            port, begin_s = free_port(), time.monotonic()
            with started(slowtok_command(port, engine, state), port, RELAY_CORE):
                _ask_health(port)
                taken.append(time.monotonic() - begin_s)
    return taken


def record_ms(engine: int, times: int) -> float:
    """Return the median milliseconds from the last byte of a stream to its record in the log."""
    taken_ms = []
    with tempfile.TemporaryDirectory() as folder:
        port, log = free_port(), Path(folder) / "log.jsonl"
        state = state_folder(Path(folder) / "state")
        command = [*slowtok_command(port, engine, state), "--log", str(log)]
        with started(command, port, RELAY_CORE):
            _ask_health(port)
            time.sleep(SETTLE_S)
            for number in range(times):
                Client(port, make_request(tokens=20, gap_us=10_000), 1, tokens=20).run(requests=1)
                ended_s = time.monotonic()
                while log.read_bytes().count(A_RECORD) <= number:
                    if time.monotonic() > ended_s + MAX_S:
                        raise SystemExit(f"no record in the log after {MAX_S:.0f} s")
                    time.sleep(0.001)
                taken_ms.append(1000 * (time.monotonic() - ended_s))
    return statistics.median(taken_ms)


def _ask_health(port: int) -> None:
    """Wait for a reply: a port is open before anybody takes clients in."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as asking:
        asking.request("GET", "/slowtok/health")
        if asking.getresponse().status != HTTPStatus.OK:
            raise SystemExit("slowtok says that it is not well")


def resident_mib(way: Way) -> list[float]:
    """Return the memory of each process, the greatest first."""
    return sorted((held / MIB for held in resident_bytes(way.processes())), reverse=True)


def sampling_ratio(seconds: float) -> dict[str, tuple[float, float]]:
    """Return the sampling process's share of a core, idle and active, by machine."""
    with tempfile.TemporaryDirectory() as folder, sampling.engine() as port:
        return asyncio.run(sampling.measure(sampling.machines(Path(folder)), port, seconds))


def diagnosis_ms(times: int) -> dict[str, float]:
    """Return the median CPU milliseconds of a diagnosis with its record."""
    return {name: statistics.median(taken) for name, taken in diagnosis.measure(times).items()}
