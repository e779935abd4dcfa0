"""Faults of the host, of the way to the client, and of the proxy itself."""

from dataclasses import replace
from random import Random

from simulator.cards import LAPTOPS
from simulator.setups import cpu_world, gpu_world, lasting, log_uniform, standing
from simulator.simulate import Truth
from simulator.world import Host, Level, World, change
from slowtok.detectors.case.case import Phase

LAPTOP_HOST = Host(ram_gib=32, ram_gb_s=55, physical=8, logical=16)


def _truth(*primary: str, allowed: tuple[str, ...] = (), phase: Phase = "decode") -> Truth:
    return Truth(slow=None, primary=frozenset(primary), allowed=frozenset(allowed), phase=phase)


def cpu_quota(dice: Random) -> tuple[World, Truth]:
    """A container may use far less CPU than its threads would."""
    world = cpu_world(dice)
    quota = world.host.physical * log_uniform(dice, 0.04, 0.95)
    world = change(world, "work", quota=max(quota, 0.1))
    return lasting(standing(world, dice), dice, (5, 25)), _truth(
        "cpu-quota", allowed=("threads-misconfigured", "host-contention", "slow-prefill")
    )


def host_contention(dice: Random) -> tuple[World, Truth]:
    """Others want the same cores: programs of this machine, or its neighbours on one host."""
    world = cpu_world(dice)
    from_s = dice.choice((0.0, 0.0, dice.uniform(1.0, 10.0)))
    if dice.random() < 0.25:
        world = change(world, "others", steal=log_uniform(dice, 0.03, 0.8))
    else:
        wanted = world.host.logical * log_uniform(dice, 0.2, 4.0)
        world = change(world, "others", cores=Level(wanted, 0.0, from_s=from_s))
    return lasting(world, dice, (8, 25)), _truth("host-contention", allowed=("slow-prefill",))


def low_power_mode(dice: Random) -> tuple[World, Truth]:
    """A laptop on its battery or on too small an adapter, or a machine told to save power."""
    if dice.random() < 0.25:
        world = replace(cpu_world(dice), host=LAPTOP_HOST)
        world = change(world, "engine", threads=LAPTOP_HOST.physical)
        # 400 to 1,400 MHz of 4,200: LostRuins/koboldcpp#318
        world = change(world, "work", cpu_clock=dice.uniform(0.095, 0.6))
        world = replace(world, power_profile="power-saver", governor="powersave", on_battery=True)
    else:
        world = gpu_world(dice, cards=LAPTOPS)
        source = dice.choice(("battery", "battery", "undersized"))
        limit = Level(log_uniform(dice, 0.15, 0.8), 1.0)
        world = change(world, "clocks", limit_ratio=limit, source=source)
        world = change(world, "nature", knee=dice.uniform(0.6, 0.9), decode_power=0.9)
        profile = dice.choice(("power-saver", "low-power", None))
        world = replace(world, on_battery=source == "battery", power_profile=profile)
    return lasting(world, dice, (5, 25)), _truth(
        "low-power-mode", allowed=("power-cap", "clocks-stuck", "slow-prefill")
    )


def slow_reader(dice: Random) -> tuple[World, Truth]:
    """The client takes the answer more slowly than it comes."""
    world = lasting(gpu_world(dice), dice, (3, 10))
    blocked_s = log_uniform(dice, 0.3, 40.0)
    world = change(world, "waits", blocked_s=blocked_s)
    return world, _truth("slow-reader", phase="delivery", allowed=("slow-network",))


def slow_network(dice: Random) -> tuple[World, Truth]:
    """The engine is done long before its words arrive here."""
    world = gpu_world(dice, kinds=("llama-server", "ollama"))
    world = change(world, "engine", api="native")
    world = change(
        world,
        "waits",
        network_ratio=log_uniform(dice, 0.1, 6.0),
        network_burst_s=dice.choice((0.0, 0.2, 1.0)),
        remote=dice.random() < 0.7,
    )
    world = lasting(world, dice, (4, 10))
    return world, _truth("slow-network", phase="delivery", allowed=("slow-reader", "proxy-lag"))


def proxy_lag(dice: Random) -> tuple[World, Truth]:
    """The proxy itself was late."""
    world = lasting(gpu_world(dice, kinds=("llama-server",)), dice, (3, 8))
    lag_s = log_uniform(dice, 0.3, 15.0)
    world = change(world, "waits", proxy_s=lag_s, proxy_lag_s=dice.choice((0.0, 0.5, 1.5)))
    return world, _truth("proxy-lag", phase="delivery", allowed=("slow-network",))
