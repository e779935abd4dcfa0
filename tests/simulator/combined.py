"""Two faults at once: both are true, and either may be named first."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from simulator import gpu_faults, memory_faults, outer_faults, server_faults
from simulator.setups import standing
from simulator.simulate import Truth
from simulator.world import Level, World, change


def shared_and_queued(dice: Random) -> tuple[World, Truth]:
    """A queue before a decode on a GPU that others use."""
    world, truth = gpu_faults.gpu_shared(dice)
    world = change(world, "waits", queue_s=dice.uniform(2, 12), in_flight=2)
    world = change(world, "engine", kind="llama-server", slots=1, version="b11434", api="openai")
    return world, _both(truth, "queued")


def too_big_and_contended(dice: Random) -> tuple[World, Truth]:
    """Layers on a CPU that others use."""
    world, truth = memory_faults.model_too_big(dice)
    cores = Level(world.host.logical * dice.uniform(0.9, 1.6), 0.0)
    return change(world, "others", cores=cores), _both(truth, "host-contention")


def hot_and_capped(dice: Random) -> tuple[World, Truth]:
    """Too hot under a lowered limit."""
    world, truth = gpu_faults.thermal_throttle(dice)
    limit = Level(dice.uniform(0.6, 0.85), 1.0)
    return change(world, "clocks", limit_ratio=limit), _both(truth, "power-cap")


def quota_and_threads(dice: Random) -> tuple[World, Truth]:
    """Many threads under a small quota."""
    world, truth = outer_faults.cpu_quota(dice)
    world = change(world, "engine", threads=world.host.logical)
    return world, _both(truth, "threads-misconfigured")


def miss_and_offload(dice: Random) -> tuple[World, Truth]:
    """A cache miss with layers on the CPU."""
    world, truth = server_faults.prompt_cache_miss(dice, server_faults.LLAMAS)
    ratio = dice.uniform(0.4, 0.8)
    world = change(world, "placement", gpu_ratio=ratio, kv_gpu_ratio=ratio)
    world = change(world, "engine", gpu_layers=int(world.model.layers * ratio))
    return standing(world, dice), replace(_both(truth, "partial-offload"), phase="prefill")


def starved_and_cool(dice: Random) -> tuple[World, Truth]:
    """Low clocks of a GPU that is waited for by nobody: an effect of the offload."""
    world, truth = memory_faults.partial_offload(dice)
    return change(world, "nature", decode_power=0.5), truth


def load_then_queue(dice: Random) -> tuple[World, Truth]:
    """A wait that was a load."""
    world, truth = server_faults.model_load(dice)
    return change(world, "waits", in_flight=1), _both(truth, "queued")


def _both(truth: Truth, other: str) -> Truth:
    return replace(truth, primary=truth.primary | {other})


COMBINED: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        shared_and_queued, too_big_and_contended, hot_and_capped, quota_and_threads,
        miss_and_offload, starved_and_cool, load_then_queue,
    )
}  # fmt: skip
