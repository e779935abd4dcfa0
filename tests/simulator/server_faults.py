"""Faults and plain facts of the engine: where it computes, how, in which order, and how often."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from simulator.cards import DATACENTER, GEFORCE
from simulator.cost import steady_token_s
from simulator.geometry import DENSE
from simulator.setups import (
    ALL_KINDS,
    BIG_CARDS,
    MARGIN_GIB,
    conversation,
    cpu_world,
    gpu_world,
    lasting,
    log_uniform,
    need_gib,
    room_gib,
    standing,
)
from simulator.simulate import Truth
from simulator.world import Kind, Level, Placement, World, change
from slowtok.detectors.case.case import Phase

LLAMAS: tuple[Kind, ...] = ("llama-server", "ollama")
MANY: tuple[Kind, ...] = ("llama-server", "vllm", "sglang")


def _truth(*primary: str, allowed: tuple[str, ...] = (), phase: Phase = "decode") -> Truth:
    return Truth(slow=None, primary=frozenset(primary), allowed=frozenset(allowed), phase=phase)


def cpu_fallback(dice: Random) -> tuple[World, Truth]:
    """There is a GPU, layers were asked for, and it does nothing."""
    world = gpu_world(dice, cards=GEFORCE, kinds=LLAMAS)
    lies = 1.0 if dice.random() < 0.4 else 0.0
    place = Placement(gpu_ratio=0.0, kv_gpu_ratio=0.0, gpu_known=lies)
    world = replace(world, placement=place)
    return lasting(standing(world, dice), dice, (5, 25)), _truth(
        "cpu-fallback", allowed=("slow-prefill", "threads-misconfigured")
    )


def slow_kernel(dice: Random) -> tuple[World, Truth]:
    """The GPU is busy with code that makes poor use of it."""
    world = gpu_world(dice)
    world = change(
        world, "work", kernel=log_uniform(dice, 1.1, 10.0), prefill=dice.uniform(0.2, 1.0)
    )
    if world.engine.kind == "llama-server":
        version = dice.choice(("b2000", "b3100", "b11434"))
        world = change(world, "engine", version=version)
        if dice.random() < 0.4:
            world = change(world, "engine", kv_type="q4_0", flash_attention="on")
    return lasting(standing(world, dice), dice, (5, 25)), _truth(
        "slow-kernel", allowed=("slow-prefill", "flash-attention-off")
    )


def host_bound(dice: Random) -> tuple[World, Truth]:
    """One thread of the engine keeps the GPU waiting between tokens."""
    world = gpu_world(dice, cards=(*GEFORCE, *DATACENTER))
    gap_s = steady_token_s(world) * (log_uniform(dice, 1.1, 10.0) - 1)
    world = change(world, "work", host_gap_s=gap_s)
    world = change(world, "nature", spin=1.0)
    if world.engine.is_torch and dice.random() < 0.6:
        # eager mode is 2 to 8 times slower in published rows, and was so from the start
        world = standing(change(world, "engine", eager=True), dice)
    return lasting(world, dice, (5, 25)), _truth("host-bound")


def flash_attention_off(dice: Random) -> tuple[World, Truth]:
    """Without it, the cache is read badly: the deeper the context, the worse."""
    for _ in range(300):
        world = gpu_world(dice, kinds=LLAMAS, models=DENSE[1:9])
        prompt = int(dice.uniform(8_000, 30_000))
        world = change(
            world, "engine", context=prompt + 2500, flash_attention="off", kv_type="f16", slots=1
        )
        if need_gib(world) < room_gib(world):
            break
    world = change(
        world, "request", prompt=prompt, cached=int(prompt * 0.97), common=0.97, previous_age_s=20.0
    )
    world = change(
        world, "work", kv_slope=log_uniform(dice, 1.2, 9.0), prefill=dice.uniform(0.5, 0.9)
    )
    return lasting(standing(world, dice), dice, (6, 25)), _truth(
        "flash-attention-off", allowed=("slow-kernel", "slow-prefill", "long-context")
    )


def threads_misconfigured(dice: Random) -> tuple[World, Truth]:
    """Far too few threads, or far more than there are cores."""
    world = cpu_world(dice)
    host = world.host
    many = int(host.logical * log_uniform(dice, 1.1, 5.0)) + 1
    few = dice.choice((1, 2, max(host.physical // 4, 1)))
    every = host.logical if host.slow_cores else many
    world = change(world, "engine", threads=dice.choice((few, many, many, every)))
    return lasting(standing(world, dice), dice, (5, 25)), _truth(
        "threads-misconfigured", allowed=("host-contention", "slow-prefill")
    )


def queued(dice: Random) -> tuple[World, Truth]:
    """Others were first."""
    world = gpu_world(dice, kinds=MANY)
    world = change(world, "engine", slots=1, per_request_metrics=world.engine.kind == "vllm")
    waits_s = log_uniform(dice, 0.5, 60.0)
    world = change(world, "waits", queue_s=waits_s, in_flight=dice.randint(1, 5))
    world = change(world, "others", via_proxy=dice.random() < 0.65)
    return world, _truth("queued", phase="queue", allowed=("batch-shared",))


def behind_a_prompt(dice: Random) -> tuple[World, Truth]:
    """There was a free slot, and the engine read the long prompt of another before."""
    world = gpu_world(dice, kinds=MANY)
    world = change(world, "engine", slots=4, per_request_metrics=world.engine.kind == "vllm")
    waits_s = log_uniform(dice, 0.5, 30.0)
    world = change(world, "waits", queue_s=waits_s, in_flight=1, behind_prompt=True)
    world = change(world, "others", via_proxy=dice.random() < 0.65)
    return world, _truth("batch-shared", phase="queue", allowed=("queued",))


def batch_shared(dice: Random) -> tuple[World, Truth]:
    """Many at once: each gets less, and it is nobody's fault."""
    world = gpu_world(dice, kinds=MANY, models=DENSE[1:9])
    count = round(log_uniform(dice, 1.0, 32.0))
    from_s = dice.choice((0.0, 0.0, dice.uniform(1.0, 9.0)))
    room = (room_gib(world) - need_gib(world, 0)) * 2**30 / count
    prompt = min(dice.uniform(2000, 9000), world.engine.context * 0.7)
    context = min(prompt * dice.uniform(0.5, 2.0), room / max(world.model.kv_bytes, 1))
    world = conversation(world, dice, int(prompt))
    world = change(world, "engine", slots=33 if world.engine.kind == "llama-server" else 1)
    world = change(
        world,
        "others",
        neighbours=Level(float(count), 0.0, from_s=from_s),
        neighbour_context=int(max(context, 500)),
        via_proxy=dice.random() < 0.65,
    )
    world = change(world, "work", kernel=1 + 0.025 * count)
    return lasting(world, dice, (12, 30)), _truth(
        "batch-shared", allowed=("slow-prefill", "slow-kernel")
    )


def kv_preemption(dice: Random) -> tuple[World, Truth]:
    """vLLM's cache is full: the request is put off, and computed again."""
    world = gpu_world(dice, kinds=("vllm",), cards=BIG_CARDS)
    world = lasting(world, dice, (5, 10))
    times = dice.randint(1, 3)
    stalls = tuple((dice.uniform(0.5, 4.0), log_uniform(dice, 0.4, 10.0)) for _ in range(times))
    world = change(
        world,
        "work",
        stalls=stalls,
        preemptions=times + dice.randint(0, 4),
        kv_used=dice.uniform(0.96, 1.0),
        waiting=dice.randint(1, 4),
    )
    world = change(
        world,
        "others",
        neighbours=Level(float(dice.randint(1, 8)), 0.0),
        neighbour_context=3000,
        via_proxy=dice.random() < 0.65,
    )
    alone = change(world, "others", neighbours=Level(0.0, 0.0))
    shared_s = (steady_token_s(world) - steady_token_s(alone)) * world.request.completion
    also = ("batch-shared",) if shared_s > sum(seconds for _, seconds in stalls) else ()
    return world, _truth("kv-preemption", *also, allowed=("batch-shared", "queued"))


def model_load(dice: Random) -> tuple[World, Truth]:
    """The model was not there yet, or not any more."""
    world = gpu_world(dice, kinds=("ollama", "llama-server"))
    load_s = log_uniform(dice, 0.5, 60.0)
    ollama = world.engine.kind == "ollama"
    world = change(world, "engine", api="native")
    world = change(world, "waits", load_s=load_s, slept=not ollama)
    others = ("other-model", world.model.name) if dice.random() < 0.5 else ()
    loads = dice.randint(2, 4) if others else 1
    world = change(world, "past", loads=loads, models=others, loads_seen=True)
    return world, _truth("model-load", phase="load", allowed=("queued",))


def prompt_cache_miss(dice: Random, kinds: Sequence[Kind] = ALL_KINDS) -> tuple[World, Truth]:
    """A long prompt that was known was computed again: a changed beginning, or a lost slot."""
    cards = (*GEFORCE, *DATACENTER)
    for _ in range(300):
        world = gpu_world(dice, cards=cards, kinds=kinds, models=DENSE[3:10])
        world = change(world, "engine", context=32768)
        if need_gib(world) + MARGIN_GIB < room_gib(world):
            break
    prompt = int(log_uniform(dice, 2_000, 28_000))
    changed = dice.random() < 0.6
    common = dice.uniform(0.0, 0.8) if changed else dice.uniform(0.7, 0.98)
    cached = int(prompt * common * 0.9) if changed else 0
    world = change(
        world,
        "request",
        prompt=prompt,
        cached=cached,
        common=common,
        shared=dice.uniform(0.85, 0.98),
        previous_age_s=dice.uniform(3, 90),
        difference=dice.choice(("time", "attribution-header", "tools-order")) if changed else None,
        others_since=0,
    )
    return lasting(world, dice, (3, 8)), _truth(
        "prompt-cache-miss", phase="prefill", allowed=("long-context", "slow-prefill")
    )


def slow_prefill(dice: Random) -> tuple[World, Truth]:
    """The prompt is computed far slower than this GPU can."""
    world = gpu_world(
        dice,
        cards=(*GEFORCE, *DATACENTER),
        models=DENSE[3:10],
    )
    prompt = int(log_uniform(dice, 1_000, 15_000))
    world = change(
        world,
        "engine",
        context=max(world.engine.context, 16384),
        micro_batch=dice.choice((16, 32, 64, 512)),
    )
    world = change(world, "request", prompt=prompt, cached=0, common=0.0, previous_age_s=None)
    world = change(world, "work", prefill=1 / log_uniform(dice, 1.1, 20.0))
    return lasting(standing(world, dice), dice, (3, 8)), _truth(
        "slow-prefill", phase="prefill", allowed=("long-context",)
    )


def draft_rejected(dice: Random) -> tuple[World, Truth]:
    """Drafts that are hardly ever taken cost more than they bring."""
    world = gpu_world(dice, kinds=MANY, models=DENSE[4:])
    world = change(world, "engine", speculative=True)
    world = change(
        world,
        "work",
        drafted=dice.randint(2, 20),
        acceptance=dice.uniform(0.03, 0.5),
        draft_cost=log_uniform(dice, 0.05, 0.4),
    )
    return lasting(_without_good_past(standing(world, dice)), dice, (5, 25)), _truth(
        "draft-rejected"
    )


def _without_good_past(world: World) -> World:
    """Other text gives other rates with drafts: what was well without them is another setup."""
    return world if world.past.before != "well" else change(world, "past", before="same")
