"""Runs that are slow for reasons that nobody can see: nothing may be named in them."""

from collections.abc import Callable
from random import Random

from simulator import gpu_faults, server_faults
from simulator.cost import steady_token_s
from simulator.setups import cpu_world, gpu_world, lasting, log_uniform
from simulator.simulate import Truth
from simulator.world import World, change

NOTHING = Truth(slow=None)


def sleeping_engine(dice: Random) -> tuple[World, Truth]:
    """The engine waits between tokens, and neither computes nor asks for anything."""
    world = gpu_world(dice)
    gap_s = steady_token_s(world) * (log_uniform(dice, 1.1, 10.0) - 1)
    world = change(world, "work", idle_gap_s=gap_s)
    world = change(world, "nature", spin=0.3)
    return lasting(world, dice, (5, 25)), NOTHING


def stalls_of_its_own(dice: Random) -> tuple[World, Truth]:
    """Everything stands still for seconds, and goes on."""
    world = lasting(gpu_world(dice), dice, (5, 9))
    count = dice.randint(1, 4)
    stalls = tuple((dice.uniform(0.5, 4), log_uniform(dice, 0.4, 8)) for _ in range(count))
    return change(world, "work", stalls=stalls), NOTHING


def without_instruments(dice: Random) -> tuple[World, Truth]:
    """Slow, while the sampling was not there."""
    world = gpu_world(dice)
    world = change(world, "work", kernel=log_uniform(dice, 1.1, 10.0))
    world = change(world, "sight", gpu_samples=False, host_samples=False)
    return lasting(world, dice, (5, 25)), NOTHING


def twice_the_work(dice: Random) -> tuple[World, Truth]:
    """The GPU gives all it has: more is read than anyone knows."""
    world = change(gpu_world(dice), "work", kernel=log_uniform(dice, 1.1, 4.0), kernel_traffic=True)
    return lasting(world, dice, (5, 25)), NOTHING


def slow_cpu(dice: Random) -> tuple[World, Truth]:
    """RAM that gives a part of what it did: a module fell back, and nothing says so."""
    world = change(cpu_world(dice), "work", ram_drag=log_uniform(dice, 1.1, 6.0))
    return lasting(world, dice, (5, 25)), NOTHING


def throttle_unseen(dice: Random) -> tuple[World, Truth]:
    """Held back by a brake, on a card that tells neither clocks nor reasons."""
    world, truth = gpu_faults.hardware_slowdown(dice)
    hidden = frozenset(
        {
            "reasons", "sm_clock_mhz", "throttled_power_ns", "throttled_sw_thermal_ns",
            "throttled_hw_thermal_ns", "throttled_power_brake_ns", "power_w", "pstate",
            "memory_clock_mhz", "power_limit_w",
        }
    )  # fmt: skip
    return change(world, "sight", hidden=hidden), Truth(
        slow=None, allowed=truth.primary | truth.allowed
    )


def neighbour_unseen(dice: Random) -> tuple[World, Truth]:
    """Another process on the GPU that no list shows."""
    world, truth = gpu_faults.gpu_shared(dice)
    world = change(world, "host", system="wsl2")
    world = change(world, "sight", hidden=frozenset({"processes"}))
    return world, Truth(slow=None, allowed=truth.primary | truth.allowed)


def host_unseen(dice: Random) -> tuple[World, Truth]:
    """Kept waiting by the host, which cannot be looked at."""
    world, truth = server_faults.host_bound(dice)
    return change(world, "sight", host_samples=False), Truth(
        slow=None, allowed=truth.primary | truth.allowed
    )


UNEXPLAINED: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        sleeping_engine, stalls_of_its_own, without_instruments, twice_the_work, slow_cpu,
        throttle_unseen, neighbour_unseen, host_unseen,
    )
}  # fmt: skip
