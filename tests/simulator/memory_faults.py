"""Faults of the memory: what does not fit, what was asked for, who held it, what was moved.

Which of them it is follows from arithmetic alone, as the causes are defined: would it fit an empty
card at the context in use, at the one reserved, beside the others, or did an earlier load fit?
"""

from dataclasses import replace
from random import Random

from simulator.cards import DATACENTER, GEFORCE, GIB, LAPTOPS, Card
from simulator.geometry import DENSE, MODELS, Model
from simulator.setups import (
    DESKTOP,
    MARGIN_GIB,
    cpu_world,
    gpu_world,
    lasting,
    log_uniform,
    need_gib,
    room_gib,
    sized,
    split_ratio,
    standing,
)
from simulator.simulate import Truth
from simulator.world import Kind, Placement, World, change

BORDER_GIB = 1.0
"""Within this of fitting, two answers are as good as each other."""

SLOWEST_TOKEN_S = 4.0
"""Nobody waits for an answer where each token takes longer."""

LLAMAS: tuple[Kind, ...] = ("llama-server", "llama-server", "ollama")
BIG = tuple(m for m in DENSE if m.parameters > 7)


def model_too_big(dice: Random) -> tuple[World, Truth]:
    """More weights than the card has memory, at any context."""
    world = _squeezed(dice, lambda w: need_gib(w, w.used_tokens) > room_gib(w) + BORDER_GIB / 2)
    world = _placed(world, dice, split_ratio(world))
    return standing(world, dice), _because(world, 0.0)


def context_oversized(dice: Random) -> tuple[World, Truth]:
    """It would fit at the context that is used; far more was reserved."""
    for _ in range(300):
        world = gpu_world(dice, cards=DESKTOP, kinds=LLAMAS, models=BIG)
        context = dice.choice((24576, 32768, 65536, 131072))
        world = change(world, "engine", context=context, gpu_layers=-1)
        ratio = split_ratio(world)
        over = need_gib(world) > room_gib(world) + BORDER_GIB
        if over and 0.05 < ratio < 0.98 and room_gib(world) > _used(world) + BORDER_GIB:
            world = _placed(world, dice, ratio)
            return standing(world, dice), _because(world, 0.0)
    raise LookupError("no such setup")


def vram_held_by_others(dice: Random) -> tuple[World, Truth]:
    """Another process had the memory when the model was loaded; it may have left since."""
    for _ in range(300):
        world = gpu_world(dice, cards=DESKTOP, kinds=LLAMAS)
        world = change(world, "engine", gpu_layers=-1)
        if room_gib(world) < need_gib(world) + BORDER_GIB:
            continue
        held = room_gib(world) - need_gib(world) * dice.uniform(0.1, 0.95)
        ratio = split_ratio(world, held)
        if not 0.0 <= ratio < 0.98:
            continue
        there = dice.random() < 0.75
        name = dice.choice(("python", "ComfyUI", "blender", "chrome", "game.exe"))
        world = change(world, "others", gpu_gib=held if there else 0.0, gpu_name=name)
        world = change(
            world, "past", others_at_load_gib=held, loads_seen=not there or dice.random() < 0.6
        )
        world = standing(_placed(world, dice, ratio), dice)
        return world, _because(world, held)
    raise LookupError("no such setup")


def reload_degradation(dice: Random) -> tuple[World, Truth]:
    """An earlier load of the same was wholly on the GPU; now memory is gone that nobody holds."""
    for _ in range(300):
        world = gpu_world(dice, cards=DESKTOP, kinds=LLAMAS)
        if need_gib(world) < room_gib(world) - BORDER_GIB:
            break
    full = need_gib(world)
    leaked = room_gib(world) - full * dice.uniform(0.2, 0.95)
    ratio = split_ratio(world, leaked)
    world = _placed(change(world, "engine", gpu_layers=-1), dice, max(ratio, 0.1))
    world = change(
        world,
        "past",
        before="well",
        count=dice.choice((1, 3, 6, 20)),
        fresh=True,
        loads_seen=True,
        loads=dice.randint(2, 5),
        earlier_gpu_gib=full,
        leaked_gib=leaked,
        leak_remains=dice.random() < 0.6,
    )
    return world, Truth(
        slow=None,
        primary=frozenset({"reload-degradation"}),
        allowed=frozenset({"partial-offload", "cpu-fallback", "slow-prefill"}),
    )


def partial_offload(dice: Random) -> tuple[World, Truth]:
    """It would fit; the engine was told otherwise: layers, experts, the cache, or some bytes."""
    how = dice.choice(("layers", "layers", "layers", "cache", "experts", "told"))
    if how == "told":
        world = gpu_world(dice, cards=DATACENTER, kinds=("vllm",))
        held = world.model.file_bytes(world.quantisation) / GIB
        moved = round(held * log_uniform(dice, 0.02, 0.8), 1)
        world = change(world, "engine", offload_gib=moved)
        world = change(world, "placement", spill_gib=moved)
    elif how == "experts":
        world = gpu_world(
            dice, cards=(*DESKTOP, *DATACENTER), kinds=("llama-server",), models=_experts()
        )
        part = log_uniform(dice, 0.05, 1.0)
        world = change(world, "engine", cpu_moe_layers=max(int(part * world.model.layers), 1))
        # of what a token reads experts are three quarters, of what is held nearly all
        world = change(world, "placement", gpu_ratio=1 - 0.75 * part, held_ratio=1 - 0.93 * part)
    elif how == "cache":
        world = gpu_world(dice, kinds=("llama-server",), models=BIG)
        prompt = int(world.engine.context * dice.uniform(0.4, 0.7))
        world = change(world, "engine", kv_on_gpu=False)
        world = change(world, "placement", kv_gpu_ratio=0.0)
        world = change(
            world,
            "request",
            prompt=prompt,
            cached=int(prompt * 0.95),
            common=0.95,
            previous_age_s=20.0,
        )
    else:
        world = gpu_world(dice, kinds=LLAMAS)
        well = world

        def without(share: float) -> World:
            ratio = 1 - share
            return replace(well, placement=Placement(gpu_ratio=ratio, kv_gpu_ratio=ratio))

        ratio = sized(dice, without, most=20.0).placement.gpu_ratio
        # told to use no layer at all, an engine does as it was told: that is no partial offload
        layers = min(max(round(world.model.layers * ratio), 1), world.model.layers - 1)
        world = change(world, "engine", gpu_layers=layers)
        world = _placed(world, dice, layers / world.model.layers)
    return _free(standing(lasting(world, dice), dice)), Truth(
        slow=None,
        primary=frozenset({"partial-offload"}),
        allowed=frozenset({"slow-prefill", "long-context"}),
    )


def vram_spill(dice: Random) -> tuple[World, Truth]:
    """The driver moved what did not fit into RAM, and told nobody."""
    system = dice.choice(("windows", "windows", "wsl2", "linux"))
    cards: tuple[Card, ...] = (*GEFORCE, *LAPTOPS)
    for _ in range(300):
        world = gpu_world(dice, cards=cards, kinds=LLAMAS, models=BIG)
        grown = room_gib(world) * log_uniform(dice, 1.01, 1.6)
        one_token = world.model.context_bytes(1, world.engine.kv_type)
        tokens = (grown - need_gib(world, 0)) * GIB / one_token
        world = change(world, "engine", context=int(tokens), slots=1, gpu_layers=99)
        over = need_gib(world) - room_gib(world)
        if 4096 < tokens < 140_000 and over > 0.1:
            break
    else:
        raise LookupError("no such setup")
    world = change(world, "engine", unified_memory=system == "linux")
    onset = dice.choice((0.0, 0.0, 0.0, dice.uniform(1, 9)))
    world = change(world, "host", system=system)
    world = change(world, "placement", spill_gib=over, spill_from_s=onset, gpu_known=1.0)
    world = lasting(world, dice)
    world = world if onset else standing(world, dice)
    root = _because(world, 0.0).primary & {"model-too-big", "context-oversized"}
    return world, Truth(
        slow=None,
        primary=frozenset({"vram-spill"}) | root,
        allowed=frozenset({"slow-prefill", "pcie-link", "long-context"}),
    )


def storage_paging(dice: Random) -> tuple[World, Truth]:
    """RAM is too small as well: weights are read from the disk, token after token."""
    if dice.random() < 0.5:
        world = cpu_world(dice, models=("Llama-3-8B", "Qwen3-14B", "Qwen3-30B-A3B", "Qwen3-32B"))
        root: frozenset[str] = frozenset({"model-too-big"})
    else:
        world = _squeezed(dice, lambda w: need_gib(w, w.used_tokens) > room_gib(w) * 1.6)
        world = _placed(world, dice, split_ratio(world))
        root = frozenset({"model-too-big"})
    on_cpu = world.model.file_bytes(world.quantisation) / GIB * (1 - world.placement.gpu_ratio)
    ram = max(on_cpu * dice.uniform(0.3, 0.97), 2.0)
    missing = min(1 - (ram - 1.5) / on_cpu, 1.0) * (1 - world.placement.gpu_ratio)
    read = world.model.pass_bytes(world.quantisation) * max(missing, 0.04)
    disk = max(log_uniform(dice, 0.15, 7.0), read / 1e9 / SLOWEST_TOKEN_S)
    world = replace(world, host=replace(world.host, ram_gib=ram + 1.5, disk_gb_s=disk))
    world = change(world, "placement", disk_ratio=max(missing, 0.04))
    return lasting(standing(world, dice), dice, (6, 30)), Truth(
        slow=None,
        primary=frozenset({"storage-paging"}) | root,
        allowed=frozenset({"partial-offload", "cpu-fallback", "slow-prefill"}),
    )


def _because(world: World, others_gib: float) -> Truth:
    """Return the cause by its definition; near a border both of its sides are right."""
    room = room_gib(world)
    used, reserved = _used(world), need_gib(world) + MARGIN_GIB / 2
    right: set[str] = set()
    if used > room - BORDER_GIB / 2:
        right.add("model-too-big")
    mostly_reserve = used - room < (reserved - room) / 2  # a smaller one would cure most of it
    if (used <= room + BORDER_GIB / 2 or mostly_reserve) and reserved > room - BORDER_GIB / 2:
        right.add("context-oversized")
    if used <= room and reserved <= room + BORDER_GIB / 2 and others_gib:
        right.add("vram-held-by-others")
    symptoms = {"partial-offload", "cpu-fallback", "slow-prefill", "long-context"}
    return Truth(slow=None, primary=frozenset(right or symptoms), allowed=frozenset(symptoms))


def _used(world: World) -> float:
    return need_gib(world, world.used_tokens)


def _squeezed(dice: Random, is_too_big: object) -> World:
    """Return a setup whose model does not fit, with a card that has some of it."""
    for _ in range(400):
        world = gpu_world(dice, cards=DESKTOP, kinds=LLAMAS)
        world = replace(world, model=dice.choice((*BIG, MODELS["Qwen3-30B-A3B"])))
        world = change(world, "engine", gpu_layers=-1)
        if is_too_big(world) and split_ratio(world) > 0.05:  # type: ignore[operator]
            return world
    raise LookupError("no such setup")


def _placed(world: World, dice: Random, ratio: float) -> World:
    """Return the world with this share of its layers on the GPU."""
    world = replace(world, placement=Placement(gpu_ratio=ratio, kv_gpu_ratio=ratio))
    world = change(world, "engine", threads=world.host.physical)
    return lasting(world, dice, (5.0, 30.0))


def _free(world: World) -> World:
    return change(world, "past", others_at_load_gib=0.0)


def _experts() -> tuple[Model, ...]:
    return MODELS["Qwen3-30B-A3B"], MODELS["DeepSeek-V2-Lite"]
