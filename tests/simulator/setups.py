"""Ordinary setups, drawn: a card, a model that suits it, an engine, a request, their nature."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from simulator.cards import (
    CARDS,
    DATACENTER,
    GEFORCE,
    GIB,
    LAPTOPS,
    RADEON,
    UNIFIED,
    VGPUS,
    Card,
)
from simulator.cost import steady_token_s, without_fault
from simulator.geometry import DENSE, MODELS, SPECIAL, Model
from simulator.physics import decode_pass
from simulator.readings import buffer_bytes
from simulator.world import (
    Before,
    Engine,
    Host,
    Kind,
    Nature,
    Past,
    Placement,
    Request,
    World,
    change,
)

ALL_CARDS = (*GEFORCE, *GEFORCE, *LAPTOPS, *DATACENTER, *VGPUS, *RADEON, *UNIFIED)
DESKTOP = (*GEFORCE, *RADEON)
BIG_CARDS = tuple(card for card in (*GEFORCE, *DATACENTER) if card.memory_gib >= 20)
HOSTS = (
    Host(ram_gib=16, ram_gb_s=21, physical=4, logical=8, disk_gb_s=0.5),
    Host(ram_gib=16, ram_gb_s=34, physical=4, logical=4, disk_gb_s=1.5),
    Host(ram_gib=32, ram_gb_s=45, physical=6, logical=12, disk_gb_s=2.0),
    Host(ram_gib=64, ram_gb_s=55, physical=8, logical=16, disk_gb_s=3.2),
    Host(ram_gib=64, ram_gb_s=80, physical=16, logical=32, disk_gb_s=5.0),
    Host(ram_gib=32, ram_gb_s=76, physical=14, logical=20, slow_cores=8, disk_gb_s=3.5),
    Host(ram_gib=64, ram_gb_s=89, physical=24, logical=32, slow_cores=16, disk_gb_s=7.0),
    Host(ram_gib=256, ram_gb_s=150, physical=32, logical=64, disk_gb_s=5.0),
    Host(ram_gib=384, ram_gb_s=460, physical=64, logical=128, disk_gb_s=6.0),
)
"""From an old laptop and a rented machine to two sockets' worth: what the makers state."""

QUANTISATIONS: dict[Kind, tuple[str, ...]] = {
    "llama-server": ("Q3_K_M", "IQ4_XS", "Q4_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
    "ollama": ("Q4_K_M", "Q4_K_M", "Q4_K_M", "Q8_0"),
    "vllm": ("AWQ", "FP8", "F16"),
    "sglang": ("AWQ", "FP8", "F16"),
}
VERSIONS: dict[Kind, tuple[str, ...]] = {
    "llama-server": ("b3600", "b5200", "b7400", "b9800", "b11434", "b11434"),
    "ollama": ("0.3.12", "0.9.6", "0.12.3", "0.30.11", "0.35.1", "0.35.1"),
    "vllm": ("0.8.5", "0.11.0", "0.20.1", "0.33.0"),
    "sglang": ("0.4.6", "0.5.7", "0.5.23"),
}
OLD_BUILD = 4400
OLD_LAYER_S = 41e-6
"""What builds of llama.cpp of 2023 and 2024 took longer for each layer (583 published rows)."""

VLLM = {"hbm": (0.79, 115e-6, 143e-6), "gddr": (0.9, 108e-6, 31e-6), "unified": (0.76, 66e-6, 0.0)}
"""vLLM by memory: share of the peak, and time for a layer, dense and more with experts. A fit of
726 published single streams, which lie at 0.51 to 1.49 of it on HBM."""

SGLANG_LAYER_S, SGLANG_EXPERTS_S = (14e-6, 55e-6), (40e-6, 110e-6)
"""The same for SGLang, between which it is drawn: 13 to 45 us a layer in five dense rows, 95 in
four with experts. So few rows that more is possible than they show."""

ALL_KINDS: tuple[Kind, ...] = ("llama-server", "llama-server", "ollama", "vllm", "sglang")
MARGIN_GIB = 0.8
LATER_S = 9.0
"""By then, whatever comes in the middle of a run has come."""


def room_gib(world: World) -> float:
    """Memory of the GPUs in use that an engine can have when it is alone."""
    return sum(card.bytes / GIB - 0.5 for card in world.used_cards)


def need_gib(world: World, context: int | None = None) -> float:
    """What the engine needs for everything on the GPUs, with this context in each slot."""
    tokens = world.engine.context if context is None else context
    cache = world.model.context_bytes(tokens, world.engine.kv_type) * world.engine.slots
    return (world.placed_bytes + cache + buffer_bytes(world) * len(world.used_cards)) / GIB


def split_ratio(world: World, taken_gib: float = 0.0) -> float:
    """Return the share of whole layers that an engine puts where this much is taken already."""
    buffers = buffer_bytes(world) * len(world.used_cards) / GIB
    free = room_gib(world) - taken_gib - MARGIN_GIB - buffers
    ratio = free / (need_gib(world) - buffers)
    layers = int(world.model.layers * min(max(ratio, 0.0), 1.0))
    return layers / world.model.layers


def gpu_world(
    dice: Random,
    *,
    cards: Sequence[Card] = ALL_CARDS,
    kinds: Sequence[Kind] = ALL_KINDS,
    models: Sequence[Model] = (*DENSE, *DENSE, *SPECIAL),
    count: int = 1,
    least_s: float = 0.0,
) -> World:
    """Return a healthy setup whose model lies wholly on its GPUs, with room to spare."""
    for _ in range(200):
        card, kind = dice.choice(cards), dice.choice(kinds)
        model = dice.choice(models)
        torch = kind in ("vllm", "sglang")
        if torch and (card.memory_gib < 12 or card.vendor == "amd"):
            continue
        if torch and (model.bits or card.architecture in ("Turing", "Pascal", "Volta")):
            continue
        world = _assemble(dice, (card,) * count, kind, model)
        per_token_s = decode_pass(world, 1.0, world.request.prompt, 0.93, 0.97).total_s
        fits = need_gib(world) + MARGIN_GIB < room_gib(world)
        if fits and per_token_s < 0.12 and per_token_s * 600 > least_s:
            return lasting(world, dice)
    raise LookupError("no model fits these cards")


def cpu_world(dice: Random, *, models: Sequence[str] = (), hosts: Sequence[Host] = HOSTS) -> World:
    """Return a healthy machine without a GPU."""
    small = ("Qwen3-0.6B", "Llama-3.2-1B", "Llama-3.2-3B", "Qwen3-4B", "Llama-3-8B")
    name = dice.choice(models or (*small, "Qwen3-30B-A3B"))
    kind: Kind = dice.choice(("llama-server", "llama-server", "ollama"))
    world = _assemble(dice, (), kind, MODELS[name])
    host = dice.choice(hosts)
    world = replace(
        world,
        host=host,
        placement=Placement(gpu_ratio=0.0, kv_gpu_ratio=0.0),
        request=Request(prompt=dice.randint(40, 500)),
        engine=replace(world.engine, threads=host.fast_cores, context=4096, gpu_layers=-1),
    )
    return lasting(world, dice)


def nature(dice: Random, card: Card | None, kind: Kind, model: Model, version: str) -> Nature:
    """Draw what no specification tells: within the class, some setups do better than others."""
    amd = card is not None and card.vendor == "amd"
    efficiency = 0.8 if card is None else card.efficiency
    layer_s = dice.uniform(55e-6, 85e-6) if amd else dice.uniform(38e-6, 66e-6)
    if card is not None and kind in ("vllm", "sglang"):
        memory = "unified" if card.unified else "hbm" if card.is_hbm else "gddr"
        efficiency, layer_s, expert_s = VLLM[memory]
        if kind == "sglang":
            layer_s = log_uniform(dice, *SGLANG_LAYER_S)
            expert_s = log_uniform(dice, *SGLANG_EXPERTS_S)
        layer_s += expert_s if model.experts else 0.0
        layer_s *= _within(dice, 1.0, 0.2) if kind == "vllm" else 1.0
        layer_s /= 1.8 if model.experts else 1.0  # the physics takes experts into account
    elif version.startswith("b") and int(version[1:]) < OLD_BUILD:
        layer_s += OLD_LAYER_S
    efficiency *= _within(dice, 1.0, 0.1) * (0.96 if kind == "ollama" else 1.0)
    return Nature(
        efficiency=min(efficiency, 0.94),
        kv_efficiency=dice.uniform(0.66, 0.95),
        layer_s=layer_s,
        prefill_ratio=(0.32 if amd else 0.43) * _within(dice, 1.0, 0.12),
        ram_ratio=dice.uniform(0.55, 0.78),
        knee=dice.uniform(0.5, 0.85),
        decode_power=dice.uniform(0.5, 0.97),
        prefill_power=dice.uniform(0.95, 1.15),
        ambient_c=dice.uniform(18, 36),
        cooling=dice.uniform(0.8, 1.15),
        warm=dice.uniform(0.2, 1.0),
        jitter=dice.uniform(0.01, 0.15),
        spin=dice.choice((1.0, 1.0, 1.0, 1.6, 0.3))
        if kind not in ("vllm", "sglang")
        else dice.uniform(1.0, 2.2),
    )


def past(dice: Random) -> Past:
    """Draw what was seen of a setup that was well so far; a third is new to the proxy."""
    count = dice.choice((0, 0, 1, 2, 3, 5, 9, 14, 32))
    before: Before = "well" if count else "nothing"
    return Past(before=before, count=count, loads_seen=dice.random() < 0.7)


def log_uniform(dice: Random, low: float, high: float) -> float:
    """Return a draw whose logarithm is uniform: as often from 1 to 2 as from 2 to 4."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))


def sized(dice: Random, dial: Callable[[float], World], most: float = 10.0) -> World:
    """Return the world whose tokens take 1.1 to `most` times as long, drawn log-uniformly.

    `dial` makes the fault larger from 0 to 1; one that cannot cost as much is taken at its end.
    """
    wanted = log_uniform(dice, 1.1, most)
    low, high = 0.0, 1.0
    for _ in range(14):
        middle = (low + high) / 2
        world = dial(middle)
        if steady_token_s(world) / steady_token_s(without_fault(world)) > wanted:
            high = middle
        else:
            low = middle
    return dial(high)


def standing(world: World, dice: Random) -> World:
    """Return the world with a past for a fault that a running engine does not catch.

    Mostly it was always like this; else the engine was started anew since it was well.
    """
    kind = dice.choice(("nothing", "same", "same", "well"))
    count = 0 if kind == "nothing" else dice.choice((1, 2, 4, 9, 20))
    return change(world, "past", before=kind, count=count, fresh=kind == "well")


def lasting(world: World, dice: Random, seconds: tuple[float, float] = (1.5, 25.0)) -> World:
    """Return the world with an answer of about so many seconds, as things stand in it."""
    work = decode_pass(world, LATER_S, world.request.prompt, 0.9, 0.97)
    rate = work.tokens / work.total_s
    least = log_uniform(dice, 12, 160)  # where it is slow, people wait, or leave early
    completion = int(min(max(rate * dice.uniform(*seconds), least), 3000))
    return change(world, "request", completion=completion)


def conversation(world: World, dice: Random, prompt: int) -> World:
    """Return the world with a prompt that goes on from an earlier one, mostly cached."""
    common = dice.uniform(0.85, 0.99)
    return change(
        world,
        "request",
        prompt=prompt,
        cached=int(prompt * common),
        common=common,
        previous_age_s=dice.uniform(3, 200),
    )


def named(name: str) -> Card:
    """Return a card by its name."""
    return CARDS[name]


def _assemble(dice: Random, cards: tuple[Card, ...], kind: Kind, model: Model) -> World:
    quantisation = dice.choice(QUANTISATIONS[kind])
    context = dice.choice((4096, 8192, 8192, 16384, 32768))
    prompt = min(int(dice.lognormvariate(6.3, 1.1)) + 20, context // 2)
    version = dice.choice(VERSIONS[kind])
    torch = kind in ("vllm", "sglang")
    engine = Engine(
        kind=kind,
        version=version,
        context=context,
        slots=1 if kind != "llama-server" else dice.choice((1, 1, 2, 4)),
        gpu_layers=dice.choice((-1, 99)),
        kv_type=dice.choice(("f16", "f16", "f16", "q8_0")) if kind == "llama-server" else "f16",
        flash_attention="auto" if torch else dice.choice(("auto", "on")),
        per_request_metrics=kind == "vllm" and version == "0.33.0" and dice.random() < 0.5,
        metrics=torch or dice.random() < 0.5,
        api="native" if kind == "ollama" and dice.random() < 0.7 else "openai",
        tensor_parallel=len(cards) if torch and len(cards) > 1 else 1,
    )
    host = dice.choice(HOSTS)
    world = World(
        cards=cards,
        host=host,
        model=model,
        quantisation=quantisation,
        engine=replace(engine, threads=host.fast_cores),
        request=Request(
            prompt=prompt, chunk_tokens=dice.choice((1.0, 1.0, 1.0, 2.3, 6.0)), stream=True
        ),
        nature=nature(dice, cards[0] if cards else None, kind, model, version),
        past=past(dice),
    )
    if dice.random() < 0.5 and prompt > 200:
        world = conversation(world, dice, prompt)
    return world


def _within(dice: Random, middle: float, sigma: float) -> float:
    """Return a draw around `middle` that stays within two sigmas."""
    return middle * min(max(dice.gauss(1, sigma), 1 - 2 * sigma), 1 + 2 * sigma)
