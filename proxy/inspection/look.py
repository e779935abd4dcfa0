"""Takes the one look: the engines answer, the sampling process reads for a moment, both end.

Nothing is sent that an engine would compute for, nothing wakes a model, and nothing is run on a
GPU. The bandwidth of RAM is only read where `slowtok serve` has kept or tells it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil

from slowtok.config.settings import Settings
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import CpuUser, DeviceFacts
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.gpus_used import gpus_used, seen_from
from slowtok.proxy.engines.probing.facts import Identity
from slowtok.proxy.engines.probing.reply import get
from slowtok.proxy.engines.probing.server_facts import model_path
from slowtok.proxy.engines.registry import USUAL_PORTS, Engines
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen
from slowtok.proxy.inspection.shared import see_store
from slowtok.proxy.sampling.host.others import Others
from slowtok.proxy.sampling.host.ram import kept_bytes_per_s
from slowtok.proxy.sampling.protocol import ProcessFacts
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.upstream.client import make_session

ENGINES_S = 10.0
"""An engine that has not answered by now will not; the geometry of a large file takes seconds."""

READY_S = 6.0
"""Starting the sampling process, and the driver of a GPU that nobody uses, takes up to seconds."""

SAMPLES_S = 1.5
"""Two rounds of the readings that come once a second."""

POLL_S = 0.05
NOT_LOOKED = "not looked at yet"
CPU_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq")

Told = Callable[[str], None]


async def take_look(settings: Settings, tell: Told, ram_bytes_per_s: float | None = None) -> Seen:
    """Look once. `tell` is given what is being done, for whoever waits.

    `ram_bytes_per_s` is the bandwidth of RAM that a running slowtok uses, if none was kept.
    """
    session = make_session(settings.connect_timeout_s, settings.max_head_bytes)
    sampler = Sampler()
    engines = Engines(
        session,
        settings.upstreams(),
        sampler=sampler,
        cache_dir=settings.state_path / "models",
        own_port=settings.port,
        log_event=lambda *_, **__: None,
    )
    with _heard() as said:
        try:
            await sampler.start()
            sampler.set_active(True)
            tell(f"looking for engines: {engines.searched_at}")
            # what an engine was told on its command line says where its model lies
            sampler.watch([e.port for e in engines.all] or list(USUAL_PORTS))
            await _wait_until_read(sampler, engines)
            engines.start(lambda _: False)
            await engines.first_look(ENGINES_S)
            sampler.watch([engine.port for engine in engines.all])
            tell("reading the machine")
            await _wait_until_read(sampler, engines)
            from_s, others = time.monotonic(), Others(os.getpid())
            others.read(SAMPLES_S)
            await asyncio.sleep(SAMPLES_S)
            seen = await _see(settings, session, engines, sampler, from_s, said)
            seen = replace(seen, others=_others(others, sampler, engines))
            return replace(seen, device=_with_ram(seen.device, settings, ram_bytes_per_s))
        finally:
            await engines.stop()
            await sampler.stop()
            await session.close()


async def _wait_until_read(sampler: Sampler, engines: Engines) -> None:
    """Wait until each process and the GPUs were looked at; what does not come is not visible."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S):
            while not _is_ready(sampler, engines):  # noqa: ASYNC110 - nobody is told of facts
                await asyncio.sleep(POLL_S)


def _is_ready(sampler: Sampler, engines: Engines) -> bool:
    processes = all(sampler.process(engine.port) for engine in engines.all)
    return processes and sampler.status()["gpu_unavailable"] != NOT_LOOKED


async def _see(
    settings: Settings,
    session: aiohttp.ClientSession,
    engines: Engines,
    sampler: Sampler,
    from_s: float,
    said: list[str],
) -> Seen:
    now_s = time.monotonic()
    port = next((engine.port for engine in engines.all), None)
    return Seen(
        engines=tuple(
            [await _engine(session, engines, e, sampler, from_s, said) for e in list(engines.all)]
        ),
        looked_at=engines.searched_at,
        device=_device(sampler),
        gpu=sampler.gpu_window(from_s, now_s),
        host=sampler.host_window(port, from_s, now_s),
        swap_used_bytes=_swap_used_bytes(),
        cpu_driver=_word(CPU_FREQUENCY / "scaling_driver"),
        cpu_preference=_word(CPU_FREQUENCY / "energy_performance_preference"),
        failures=_failures(sampler),
        store=await see_store(settings),
    )


async def _engine(
    session: aiohttp.ClientSession,
    engines: Engines,
    engine: Engine,
    sampler: Sampler,
    from_s: float,
    said: list[str],
) -> EngineSeen:
    found = seen_engine(engines, engine, sampler, from_s, said)
    return replace(found, is_slowtok=await _is_slowtok(session, engine.url))


def seen_engine(
    engines: Engines, engine: Engine, sampler: Sampler, from_s: float, said: list[str]
) -> EngineSeen:
    """Return what is known of an engine and its models; samples since `from_s`. Asks nobody."""
    now_s = time.monotonic()
    listens = engines.process_of(engine, None)
    here = engine.is_here(listens) is not False
    process = listens or ProcessFacts(port=engine.port)
    samples = seen_from(sampler.gpu_window(from_s, now_s), _pids(process)) if here else ()
    gpus = gpus_used(samples, sampler.device(), process.environment) if here else None

    def server_of(model: str | None) -> tuple[ServerFacts, ModelFacts]:
        server, facts = engines.facts(engine.name, model)
        return replace(server, gpu_indices=gpus), facts

    return EngineSeen(
        name=engine.name,
        url=engine.url,
        answers=engine.identity is not None,
        server=server_of(None)[0],
        models=tuple(engine.models) or engine.probe.models,
        serving=tuple(_serving(engine, *server_of(name), said) for name in _in_memory(engine)),
        host=sampler.host_window(process.port, from_s, now_s) if here else (),
        gpu=samples,
    )


def _pids(process: ProcessFacts) -> frozenset[int]:
    own = () if process.pid is None else (process.pid,)
    return frozenset((*own, *(child.pid for child in process.children)))


def _in_memory(engine: Engine) -> list[str]:
    """Return the models that are loaded; of engines that do not say, those that must be."""
    if engine.probe.loaded:
        return [loaded.name for loaded in engine.probe.loaded]
    names = list(engine.models)
    always = engine.kind in ("vllm", "sglang") or len(names) == 1
    return names[:1] if always and engine.kind != "ollama" else []


def _serving(
    engine: Engine, server: ServerFacts, model: ModelFacts, said: list[str]
) -> ServingSeen:
    return ServingSeen(
        server=server, model=model, unreadable=_unreadable(engine, server, model, said)
    )


def _unreadable(
    engine: Engine, server: ServerFacts, model: ModelFacts, said: list[str]
) -> str | None:
    """Return why the model's file told nothing; None where it did, or where there is none."""
    if model.read_bytes is not None or server.local is False:
        return None
    identity = engine.identity or Identity(kind="unknown")
    path = model_path(identity, engine.probe, model.name) or model_path(identity, engine.probe)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return next((line for line in reversed(said) if path in line), None) or next(
        reversed(said), f"{path} could not be understood"
    )


async def _is_slowtok(session: aiohttp.ClientSession, url: str) -> bool:
    """Ask for slowtok's own page, which no engine has."""
    reply = await get(session, url, "/slowtok/health")
    return reply is not None and reply.status == 200 and reply.json == {"status": "ok"}


def _others(others: Others, sampler: Sampler, engines: Engines) -> tuple[CpuUser, ...]:
    """Return who used the CPU since the look before, beside the engines and slowtok."""
    largest_without = others.read(SAMPLES_S)
    if largest_without is None:
        return ()
    processes = (sampler.process(engine.port) for engine in engines.all)
    served = {pid for process in processes if process for pid in _pids(process)}
    return tuple(CpuUser(**program) for program in largest_without(served))


def _device(sampler: Sampler) -> DeviceFacts:
    device = replace(sampler.device(), sampling_failure=sampler.failure)
    reason = sampler.gpus_reason
    return device if device.gpus_reason or not reason else replace(device, gpus_reason=reason)


def _with_ram(device: DeviceFacts, settings: Settings, told: float | None) -> DeviceFacts:
    if (given := settings.ram_bytes_per_s) is not None:
        return replace(device, ram_bandwidth_bytes_per_s=given, ram_bandwidth_source="given")
    seen = max(kept_bytes_per_s(settings.state_path) or 0.0, told or 0.0) or None
    return replace(
        device,
        ram_bandwidth_bytes_per_s=seen,
        ram_bandwidth_source="measured" if seen else None,
    )


def _failures(sampler: Sampler) -> tuple[str, ...]:
    return tuple(f"{where}: {error}" for where, error in sampler.status()["failed"].items())


def _swap_used_bytes() -> int | None:
    try:
        return int(psutil.swap_memory().used)
    except (OSError, RuntimeError):  # a container may hide it
        return None


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Keep what is logged meanwhile, and off the screen: the checks say it in their place."""
    said: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    keeper, logger = Keeper(), logging.getLogger("slowtok")
    before = logger.propagate
    logger.addHandler(keeper)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(keeper)
        logger.propagate = before
