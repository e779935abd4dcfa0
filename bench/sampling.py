"""What sampling costs: CPU of the sampling process, as a share of one core.

    PYTHONPATH=tests python bench/sampling.py [--seconds S] [--rounds N]

Machines, idle and with a request there, interleaved: without a GPU, and with one or eight that the
stand-in for NVML plays; its calls cost nothing (what is left is slowtok's own cost), or take as
long as was published for an RTX 5090. A process with twenty threads stands for the engine. What a
request costs is measured after `SETTLE_S`, when sampling has found its pace; how far it had to slow
down for that is printed too. Medians over the rounds.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.supervisor import Sampler

ENGINE = """
import socket, sys, threading, time
listener = socket.socket()
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
for _ in range(20):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.stdin.read()
"""

PUBLISHED_US = {
    "UtilizationRates": 0.8,
    "ClockInfo.1": 0.5,
    "ClockInfo.2": 0.5,
    "PerformanceState": 0.3,
    "CurrentClocksEventReasons": 0.4,
    "TemperatureV.0": 0.4,
    "MemoryInfo_v2": 3,
    "Field186": 3,
    "Field197": 200,
    "Field198": 200,
    "TotalEnergyConsumption": 2600,
    "ProcessUtilization": 1700,
    "ComputeRunningProcesses": 130,
    "GraphicsRunningProcesses": 200,
}
"""Microseconds per call on an RTX 5090, driver 610 ("Reproducing nvtop 3.2 for the RTX 5090")."""

WARM_S = 2.0
SETTLE_S = 12.0

MANY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine to sample: a name, and the variables under which its GPUs are found."""

    name: str
    variables: dict[str, str]


def machines(folder: Path) -> list[Machine]:
    """Return the machines; the stand-in is built once."""
    library = str(stand_in.library().parent)

    def with_gpus(name: str, count: int, answers: dict[str, str]) -> Machine:
        gpus = [RTX_4090 | {"UUID": f"GPU-{index}"} | answers for index in range(count)]
        script = Script(folder / f"{len(answers)}-{count}.txt", *gpus)
        variables = {
            "LD_LIBRARY_PATH": library,
            "NVML_STAND_IN": str(script.path),
            "NVML_STAND_IN_ONCE": "1",
        }
        return Machine(name=name, variables=variables)

    return [
        Machine(name="no GPU", variables={}),
        with_gpus("GPU, free calls", 1, {}),
        with_gpus("GPU, calls as published", 1, _spinning()),
        with_gpus(f"{MANY} GPUs, free calls", MANY, {}),
        with_gpus(f"{MANY} GPUs, calls as published", MANY, _spinning()),
    ]


def _spinning() -> dict[str, str]:
    return {
        name: f"~{max(round(cost_us), 1)}us {RTX_4090[name]}"
        for name, cost_us in PUBLISHED_US.items()
        if name in RTX_4090
    }


@contextlib.contextmanager
def engine() -> Iterator[int]:
    """Run the process that stands for the engine; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-c", ENGINE, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield port
        process.communicate()


async def measure(machine: Machine, port: int, seconds: float) -> tuple[float, float]:
    """Return the shares of a core that the sampling process took, idle and with a request."""
    os.environ.update(machine.variables)
    sampler = Sampler()
    await sampler.start()
    try:
        sampler.watch([port])
        await asyncio.sleep(WARM_S)
        [process] = [p for p in psutil.Process().children() if "sampling" in " ".join(p.cmdline())]
        idle = await _share(process, seconds)
        sampler.set_active(True)
        await asyncio.sleep(SETTLE_S)
        active = await _share(process, seconds)
    finally:
        await sampler.stop()
        for name in machine.variables:
            del os.environ[name]
    return idle, active


async def _share(process: psutil.Process, seconds: float) -> float:
    before = process.cpu_times()
    await asyncio.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


async def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, engine() as port:
        for _ in range(asked.rounds):
            for machine in machines(Path(folder)):
                shares = await measure(machine, port, asked.seconds)
                found.setdefault(machine.name, []).append(shares)
    print(f"{'machine':26} {'idle':>9} {'request there':>14}   % of one core, medians")
    for name, rounds in found.items():
        idle, active = (100 * statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:26} {idle:8.2f}% {active:13.2f}%")


if __name__ == "__main__":
    asyncio.run(main())
