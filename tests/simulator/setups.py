"""Ordinary setups, drawn: a card, a model that suits it, an engine, a request, their nature."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from simulator.cards import CARDS, DATACENTER, GEFORCE, GIB, LAPTOPS, RADEON, SPARK, Card
from simulator.geometry import DENSE, MODELS, SPECIAL, Model
from simulator.physics import decode_pass
from simulator.readings import buffer_bytes
from simulator.world import Engine, Host, Kind, Nature, Past, Placement, Request, World, change

ALL_CARDS = (*GEFORCE, *GEFORCE, *LAPTOPS, *DATACENTER, RADEON, SPARK)
DESKTOP = (*GEFORCE, RADEON)
HOSTS = (
    Host(ram_gib=32, ram_gb_s=45, physical=6, logical=12, disk_gb_s=2.0),
    Host(ram_gib=64, ram_gb_s=55, physical=8, logical=16, disk_gb_s=3.2),
    Host(ram_gib=64, ram_gb_s=80, physical=16, logical=32, disk_gb_s=5.0),
    Host(ram_gib=256, ram_gb_s=150, physical=32, logical=64, disk_gb_s=5.0),
)
QUANTISATIONS: dict[Kind, tuple[str, ...]] = {
    "llama-server": ("Q4_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
    "ollama": ("Q4_K_M", "Q4_K_M", "Q4_K_M", "Q8_0"),
    "vllm": ("AWQ", "F16"),
}
VERSIONS: dict[Kind, tuple[str, ...]] = {
    "llama-server": ("b11434",),
    "ollama": ("0.30.11", "0.35.1", "0.35.1"),
    "vllm": ("0.33.0",),
}
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
    kinds: Sequence[Kind] = ("llama-server", "llama-server", "ollama", "vllm"),
    models: Sequence[Model] = (*DENSE, *DENSE, *SPECIAL),
    count: int = 1,
    least_s: float = 0.0,
) -> World:
    """Return a healthy setup whose model lies wholly on its GPUs, with room to spare."""
    for _ in range(200):
        card, kind = dice.choice(cards), dice.choice(kinds)
        model = dice.choice(models)
        if kind == "vllm" and (card.memory_gib < 12 or card.unified or card.vendor == "amd"):
            continue
        if kind == "vllm" and (model.bits or card.architecture in ("Turing", "Pascal")):
            continue
        world = _assemble(dice, (card,) * count, kind, model)
        per_token_s = decode_pass(world, 1.0, world.request.prompt, 0.93, 0.97).total_s
        fits = need_gib(world) + MARGIN_GIB < room_gib(world)
        if fits and per_token_s < 0.12 and per_token_s * 600 > least_s:
            return lasting(world, dice)
    raise LookupError("no model fits these cards")


def cpu_world(dice: Random, *, models: Sequence[str] = ()) -> World:
    """Return a healthy machine without a GPU."""
    names = models or ("Llama-3.2-1B", "Llama-3.2-3B", "Qwen3-4B", "Llama-3-8B", "Qwen3-30B-A3B")
    world = _assemble(dice, (), "llama-server", MODELS[dice.choice(names)])
    world = replace(
        world,
        placement=Placement(gpu_ratio=0.0, kv_gpu_ratio=0.0),
        request=Request(prompt=dice.randint(40, 500)),
        engine=replace(world.engine, threads=world.host.physical, context=4096),
    )
    return lasting(world, dice)


def nature(dice: Random, card: Card | None, kind: Kind) -> Nature:
    """Draw what no specification tells: within the class, some setups do better than others."""
    efficiency = 0.8 if card is None else card.efficiency
    efficiency *= _within(dice, 1.0, 0.1) * {"ollama": 0.96, "vllm": 0.95}.get(kind, 1.0)
    amd = card is not None and card.vendor == "amd"
    return Nature(
        efficiency=min(efficiency, 0.94),
        kv_efficiency=dice.uniform(0.66, 0.95),
        layer_s=dice.uniform(55e-6, 85e-6) if amd else dice.uniform(38e-6, 66e-6),
        prefill_ratio=(0.32 if amd else 0.43) * _within(dice, 1.0, 0.12),
        ram_ratio=dice.uniform(0.58, 0.76),
        knee=dice.uniform(0.55, 0.85),
        decode_power=dice.uniform(0.6, 0.97),
        prefill_power=dice.uniform(0.95, 1.15),
        ambient_c=dice.uniform(22, 34),
        cooling=dice.uniform(0.8, 1.1),
        warm=dice.uniform(0.3, 1.0),
        jitter=dice.uniform(0.01, 0.12),
        spin=dice.choice((1.0, 1.0, 1.0, 1.6, 0.3)) if kind != "vllm" else dice.uniform(1.0, 2.2),
    )


def lasting(world: World, dice: Random, seconds: tuple[float, float] = (3.0, 22.0)) -> World:
    """Return the world with an answer long enough to be judged, as things stand in it."""
    work = decode_pass(world, LATER_S, world.request.prompt, 0.9, 0.97)
    rate = work.tokens / work.total_s
    completion = int(min(max(rate * dice.uniform(*seconds), 40), 3000))
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
    engine = Engine(
        kind=kind,
        version=dice.choice(VERSIONS[kind]),
        context=context,
        slots=1 if kind != "llama-server" else dice.choice((1, 1, 2)),
        gpu_layers=dice.choice((-1, 99)),
        kv_type=dice.choice(("f16", "f16", "f16", "q8_0")) if kind == "llama-server" else "f16",
        flash_attention=dice.choice(("auto", "on")) if kind != "vllm" else "auto",
        per_request_metrics=kind == "vllm" and dice.random() < 0.3,
        metrics=kind == "vllm" or dice.random() < 0.5,
        api="native" if kind == "ollama" and dice.random() < 0.7 else "openai",
        tensor_parallel=len(cards) if kind == "vllm" and len(cards) > 1 else 1,
    )
    host = dice.choice(HOSTS)
    world = World(
        cards=cards,
        host=host,
        model=model,
        quantisation=quantisation,
        engine=replace(engine, threads=host.physical),
        request=Request(
            prompt=prompt, chunk_tokens=dice.choice((1.0, 1.0, 1.0, 2.3, 6.0)), stream=True
        ),
        nature=nature(dice, cards[0] if cards else None, kind),
        past=Past(count=dice.choice((0, 0, 6, 14, 32)), loads_seen=dice.random() < 0.7),
    )
    if dice.random() < 0.5 and prompt > 200:
        world = conversation(world, dice, prompt)
    return world


def _within(dice: Random, middle: float, sigma: float) -> float:
    """Return a draw around `middle` that stays within two sigmas."""
    return middle * min(max(dice.gauss(1, sigma), 1 - 2 * sigma), 1 + 2 * sigma)
