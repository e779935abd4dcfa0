"""What sampling costs: CPU of the sampling process, as a share of one core.

Machines, idle and with a request there: without a GPU, and with one or eight that the stand-in for
NVML plays; its calls cost nothing (what is left is slowtok's own cost), or take as long as was
published for an RTX 5090. A process with twenty threads stands for the engine. What a request costs
is measured after `SETTLE_S`, when sampling has found its pace.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench.processes import spent_s

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


async def measure(
    machines: list[Machine], port: int, seconds: float
) -> dict[str, tuple[float, float]]:
    """Return the shares of a core that sampling each machine takes, idle and with a request."""
    async with contextlib.AsyncExitStack() as stack:
        samplers: dict[str, tuple[Sampler, psutil.Process]] = {}
        for machine in machines:
            samplers[machine.name] = await stack.enter_async_context(_sampling(machine, port))
        await asyncio.sleep(WARM_S)
        idle = await _shares(samplers, seconds)
        for sampler, _ in samplers.values():
            sampler.set_active(True)
        await asyncio.sleep(SETTLE_S)
        active = await _shares(samplers, seconds)
    return {name: (idle[name], active[name]) for name in samplers}


@contextlib.asynccontextmanager
async def _sampling(machine: Machine, port: int) -> AsyncIterator[tuple[Sampler, psutil.Process]]:
    """Sample a machine; give what samples, and its process."""
    before = set(psutil.Process().children())
    sampler = Sampler()
    os.environ.update(machine.variables)
    try:
        await sampler.start()
        while not (begun := set(psutil.Process().children()) - before):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    finally:
        for name in machine.variables:
            del os.environ[name]
    try:
        sampler.watch([port])
        yield sampler, begun.pop()
    finally:
        await sampler.stop()


async def _shares(
    samplers: dict[str, tuple[Sampler, psutil.Process]], seconds: float
) -> dict[str, float]:
    before_s = {name: spent_s([process]) for name, (_, process) in samplers.items()}
    begun_s = time.monotonic()
    await asyncio.sleep(seconds)
    passed_s = time.monotonic() - begun_s
    return {
        name: (spent_s([process]) - before_s[name]) / passed_s
        for name, (_, process) in samplers.items()
    }
