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
import time
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
SETTLE_S = 40.0

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Shares of a core that the sampling process took, and what it had to slow down for that."""

    idle: float
    active: float
    slowed: dict[str, float]


async def measure(machine: Machine, port: int, seconds: float) -> tuple[float, float]:
    """Return the shares of a core that the sampling process took, idle and with a request."""
    cost = await cost_of(machine, port, seconds)
    return cost.idle, cost.active


async def cost_of(machine: Machine, port: int, seconds: float) -> Cost:
    """Return what sampling one machine costs."""
    os.environ.update(machine.variables)
    sampler = Sampler()
    await sampler.start()
    try:
        sampler.watch([port])
        await asyncio.sleep(WARM_S)
        [process] = [p for p in psutil.Process().children() if "sampling" in " ".join(p.cmdline())]
        idle = await _share(process.pid, seconds)
        sampler.set_active(True)
        await asyncio.sleep(SETTLE_S)
        active = await _share(process.pid, seconds)
        return Cost(idle=idle, active=active, slowed=sampler.status()["slowed"])
    finally:
        await sampler.stop()
        for name in machine.variables:
            del os.environ[name]


async def _share(pid: int, seconds: float) -> float:
    before_s, begun_s = _cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - before_s) / (time.monotonic() - begun_s)


def _cpu_s(pid: int) -> float:
    """CPU time of all threads, by the scheduler's own clock; /proc/PID/stat has ticks of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_bytes().split()[0]) for thread in threads) / 1e9


async def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as folder, engine() as port:
        for _ in range(asked.rounds):
            for machine in machines(Path(folder)):
                cost = await cost_of(machine, port, asked.seconds)
                found.setdefault(machine.name, []).append(cost)
    print(f"{'machine':28} {'idle':>9} {'request there':>14}   % of one core, medians; slowed to")
    for name, costs in found.items():
        idle = 100 * statistics.median(cost.idle for cost in costs)
        active = 100 * statistics.median(cost.active for cost in costs)
        print(f"{name:28} {idle:8.2f}% {active:13.2f}%   {costs[-1].slowed or ''}")


if __name__ == "__main__":
    asyncio.run(main())
