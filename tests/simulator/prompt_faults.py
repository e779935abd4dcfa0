"""Faults of what was computed before: prompts that are read again, builds, compilers, leavers."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from simulator.cards import DATACENTER, GEFORCE
from simulator.geometry import DENSE
from simulator.setups import MARGIN_GIB, gpu_world, lasting, log_uniform, need_gib, room_gib
from simulator.simulate import Truth
from simulator.world import Kind, World, change
from slowtok.detectors.case.case import Phase

TELLING: tuple[Kind, ...] = ("llama-server", "vllm", "sglang")
"""Engines that tell what they took from their cache."""

STATE_MIB = (20.0, 150.0)
"""Of a sequence: from a small hybrid to Qwen3.5-27B (151 MiB)."""


def _truth(*primary: str, allowed: tuple[str, ...] = (), phase: Phase = "prefill") -> Truth:
    return Truth(slow=None, primary=frozenset(primary), allowed=frozenset(allowed), phase=phase)


def _long(dice: Random, kinds: tuple[Kind, ...]) -> World:
    """A setup with room for a long prompt."""
    for _ in range(300):
        world = gpu_world(dice, cards=(*GEFORCE, *DATACENTER), kinds=kinds, models=DENSE[3:10])
        world = change(world, "engine", context=32768)
        if need_gib(world) + MARGIN_GIB < room_gib(world):
            break
    return world


def _conversation(world: World, dice: Random, *, grew: bool) -> World:
    """The world with a long prompt of which most is known; that only grew, or changed late."""
    prompt = int(log_uniform(dice, 2_000, 28_000))
    common = dice.uniform(0.55, 0.98)
    return change(
        world,
        "request",
        prompt=prompt,
        cached=int(prompt * common),
        common=common,
        shared=common if grew else min(common + dice.uniform(0.01, 0.05), 0.99),
        grew=grew,
        previous_age_s=dice.uniform(3, 90),
        difference=None if grew else dice.choice(("time", "reminder", "pruned", "text", "number")),
    )


def cache_not_rewindable(dice: Random) -> tuple[World, Truth]:
    """A model with a state: what changes at the end costs all, or all since a checkpoint."""
    world = _conversation(_long(dice, TELLING), dice, grew=dice.random() < 0.4)
    world = replace(world, model=replace(world.model, state_mib=dice.uniform(*STATE_MIB)))
    kept = dice.choice((0.0, 0.0, dice.uniform(0.0, 0.6)))
    cached = int(world.request.cached * kept)
    world = change(world, "request", cached=cached)
    return lasting(world, dice, (3, 8)), _truth(
        "cache-not-rewindable", allowed=("long-context", "slow-prefill", "prompt-cache-miss")
    )


def template_rewrite(dice: Random) -> tuple[World, Truth]:
    """Messages only grow, and the template renders the turns of a chain anew."""
    world = _conversation(_long(dice, TELLING), dice, grew=True)
    habits = dice.choice((None, (), ("thinking",), ("tools-last",)))
    world = change(world, "engine", template_habits=habits)
    cached = int(world.request.cached * dice.uniform(0.03, 0.7))
    world = change(world, "request", cached=max(cached, 20))
    return lasting(world, dice, (3, 8)), _truth(
        "template-rewrite", allowed=("long-context", "slow-prefill")
    )


def cache_evicted(dice: Random) -> tuple[World, Truth]:
    """Others came in between, and what is left is what they share with this conversation."""
    world = _conversation(_long(dice, ("llama-server", "vllm")), dice, grew=True)
    slots = world.engine.slots if world.engine.kind == "llama-server" else 1
    shared = dice.uniform(0.0, 0.4)
    world = change(
        world,
        "request",
        cached=int(world.request.prompt * shared),
        others_since=dice.randint(slots, slots + 3),
        others_common=shared,
    )
    kept = world.request.prompt * dice.uniform(1.0, 1.9)
    world = change(world, "engine", kv_tokens=int(kept))
    return lasting(world, dice, (3, 8)), _truth(
        "cache-evicted", allowed=("long-context", "slow-prefill")
    )


def kernel_compile(dice: Random) -> tuple[World, Truth]:
    """The first request after a start waits for its kernels."""
    world = _long(dice, ("vllm", "sglang"))
    world = change(
        world,
        "request",
        prompt=int(log_uniform(dice, 100, 4_000)),
        cached=0,
        common=0.0,
        previous_age_s=None,
    )
    world = change(world, "waits", compile_s=log_uniform(dice, 1.0, 40.0))
    world = change(world, "past", before="well", count=dice.choice((3, 9)), fresh=True)
    return lasting(world, dice, (3, 10)), _truth(
        "kernel-compile", allowed=("slow-prefill", "host-bound")
    )


def engine_regression(dice: Random) -> tuple[World, Truth]:
    """Another build does the same more slowly; its kernels keep the GPU as busy as before."""
    world = gpu_world(dice)
    world = change(world, "work", kernel=log_uniform(dice, 1.15, 4.0))
    world = change(
        world, "past", before="nothing", count=0, other_build=dice.choice((1, 3, 6, 20)), fresh=True
    )
    return lasting(world, dice, (5, 25)), _truth(
        "engine-regression", allowed=("slow-kernel", "slow-prefill"), phase="decode"
    )


def abandoned_request(dice: Random) -> tuple[World, Truth]:
    """The engine's one slot works on for a client that left."""
    world = gpu_world(dice, kinds=("llama-server",))
    world = change(world, "engine", slots=1)
    waits_s = log_uniform(dice, 0.5, 60.0)
    world = change(world, "waits", queue_s=waits_s, left_s=dice.uniform(0.1, 20.0))
    return world, _truth("abandoned-request", allowed=("queued",), phase="queue")


def state_that_goes_on(dice: Random) -> World:
    """A model with a state, whose conversation goes on where it ended."""
    world = _conversation(_long(dice, TELLING), dice, grew=True)
    return replace(world, model=replace(world.model, state_mib=dice.uniform(*STATE_MIB)))


def conversations_in_turns(dice: Random) -> World:
    """Others came in between, and there was room for all."""
    world = _conversation(_long(dice, TELLING), dice, grew=dice.random() < 0.7)
    world = change(world, "request", others_since=dice.randint(1, 3), others_common=0.1)
    return change(world, "engine", slots=4 if world.engine.kind == "llama-server" else 1)


def another_build(dice: Random) -> World:
    """Another build served it before, as fast."""
    world = gpu_world(dice)
    return change(world, "past", before="nothing", count=0, other_build=9, fresh=True)


def client_left_before(dice: Random) -> World:
    """A client left, and the engine stopped."""
    world = gpu_world(dice, kinds=TELLING)
    return change(world, "waits", left_s=dice.uniform(0.1, 20.0))


def long_thoughts(dice: Random) -> World:
    """Most of the answer is reasoning, at the usual rate."""
    world = gpu_world(dice)
    return change(world, "request", reasoning_ratio=dice.uniform(0.5, 0.95), completion=1500)


def tools_galore(dice: Random) -> World:
    """A long prompt of tools before a short question, for the first time."""
    world = _long(dice, TELLING)
    prompt = int(log_uniform(dice, 5_000, 28_000))
    return change(world, "request", prompt=prompt, cached=0, common=0.0, previous_age_s=None)


FAULTS: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        cache_not_rewindable,
        template_rewrite,
        cache_evicted,
        kernel_compile,
        engine_regression,
        abandoned_request,
    )
}
HEALTHY: dict[str, Callable[[Random], World]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        state_that_goes_on,
        conversations_in_turns,
        another_build,
        client_left_before,
        long_thoughts,
        tools_galore,
    )
}
