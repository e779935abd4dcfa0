"""Runs in which nothing is wrong, most of them with something that looks as if it were."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from simulator import prompt_faults
from simulator.cards import DATACENTER, GEFORCE, LAPTOPS, UNIFIED, VGPUS
from simulator.cost import without_fault
from simulator.geometry import MODELS
from simulator.setups import (
    BIG_CARDS,
    conversation,
    cpu_world,
    gpu_world,
    lasting,
    named,
    need_gib,
    room_gib,
)
from simulator.world import Level, World, change


def plain(dice: Random) -> World:
    """Nothing to see."""
    return gpu_world(dice)


def capped_but_fine(dice: Random) -> World:
    """The power limit is always reached, and costs nothing: memory is what is waited for."""
    world = change(gpu_world(dice), "nature", decode_power=dice.uniform(0.96, 1.08), knee=0.55)
    return change(world, "clocks", limit_ratio=Level(dice.uniform(0.88, 1.0), 1.0))


def hot_but_fine(dice: Random) -> World:
    """Warm, at its target, without a slowdown."""
    world = gpu_world(dice, cards=GEFORCE)
    return change(world, "nature", ambient_c=dice.uniform(33, 38), cooling=1.1, warm=1.0)


def filled_by_vllm(dice: Random) -> World:
    """VRAM is full because vLLM takes it all at start."""
    world = gpu_world(dice, kinds=("vllm", "sglang"))
    return change(world, "engine", memory_ratio=dice.choice((0.9, 0.95, 0.98)))


def layer_split(dice: Random) -> World:
    """Two GPUs take turns: each is half busy."""
    return gpu_world(dice, cards=GEFORCE, kinds=("llama-server", "ollama"), count=2)


def tensor_parallel(dice: Random) -> World:
    """Two GPUs compute each layer together, and faster than one after the other."""
    for _ in range(100):
        world = gpu_world(dice, cards=DATACENTER, kinds=("vllm", "sglang"), count=2)
        world = change(world, "nature", sync_s=dice.uniform(5e-6, 15e-6))
        if without_fault(world).engine.computes_together:
            return world
    raise LookupError("no model is better off on two cards")


def idle_second_gpu(dice: Random) -> World:
    """A second card does nothing at all."""
    world = gpu_world(dice, cards=GEFORCE, kinds=("llama-server", "ollama"))
    return replace(world, cards=(*world.cards, named("NVIDIA GeForce RTX 3060")), idle_cards=1)


def compositor(dice: Random) -> World:
    """The desktop draws now and then."""
    world = gpu_world(dice, cards=GEFORCE)
    return change(
        world,
        "others",
        gpu_share=Level(dice.uniform(0.01, 0.04), 0.0),
        gpu_name="gnome-shell",
        gpu_gib=0.4,
    )


def short(dice: Random) -> World:
    """Too short to be judged."""
    world = change(gpu_world(dice), "request", completion=dice.randint(2, 60))
    return change(world, "nature", warm=0.2)


def harmless_batch(dice: Random) -> World:
    """Another request shares the weights, and costs next to nothing."""
    world = gpu_world(dice, kinds=("llama-server", "vllm"), models=(MODELS["Llama-3-8B"],))
    world = change(world, "engine", slots=4 if world.engine.kind == "llama-server" else 1)
    return change(world, "others", neighbours=Level(1.0, 0.0), neighbour_context=300)


def blip(dice: Random) -> World:
    """A change of P-state is told as a hardware slowdown, for one sample."""
    world = gpu_world(dice, cards=GEFORCE)
    return change(world, "clocks", blips=(dice.uniform(0.5, 3.0),))


def long_context(dice: Random) -> World:
    """Slower than a short one, as it has to be."""
    world = gpu_world(dice, cards=BIG_CARDS)
    prompt = int(dice.choice((16e3, 24e3, 48e3)) * dice.uniform(0.6, 1.0))
    world = change(world, "engine", context=2 * prompt, slots=1)
    if need_gib(world) > room_gib(world):
        world = replace(world, model=MODELS["Qwen3-4B"], quantisation="Q4_K_M")
        world = change(world, "engine", kind="llama-server")
    return lasting(conversation(world, dice, prompt), dice)


def new_conversation(dice: Random) -> World:
    """Nothing of the prompt was seen before, so nothing can be cached."""
    world = gpu_world(dice, cards=BIG_CARDS)
    return change(
        world,
        "request",
        prompt=2000,
        cached=0,
        common=0.01,
        shared=0.02,
        previous_age_s=40.0,
        difference="text",
    )


def narrow_link(dice: Random) -> World:
    """A slow link under a model that lies wholly on the GPU: decode does not care."""
    world = gpu_world(dice, cards=GEFORCE, kinds=("llama-server", "ollama"))
    return change(world, "link", width=dice.choice((1, 4, 8)))


def unified(dice: Random) -> World:
    """A chip whose link is a placeholder and whose memory is the machine's."""
    return gpu_world(dice, cards=UNIFIED)


def laptop(dice: Random) -> World:
    """A laptop on its adapter."""
    world = gpu_world(dice, cards=LAPTOPS, kinds=("llama-server", "ollama"))
    world = change(world, "clocks", source="ac")
    return replace(world, on_battery=False, power_profile="balanced")


def virtual(dice: Random) -> World:
    """A licensed slice of a GPU in a virtual machine, which tells little of itself."""
    world = gpu_world(dice, cards=VGPUS)
    world = change(world, "health", virtual=True, licensed=True)
    return change(world, "sight", silent=frozenset({dice.choice(("mig", "bus_width_bits"))}))


def always_like_this(dice: Random) -> World:
    """Among the slower ones of its kind, and it always was."""
    world = gpu_world(dice, kinds=("llama-server", "ollama"))
    ratio = world.cards[0].efficiency * dice.uniform(0.72, 0.9)
    world = change(world, "nature", efficiency=min(ratio, world.nature.efficiency))
    return change(world, "past", before="well", count=dice.choice((1, 3, 8, 30)))


def dropped_drafts(dice: Random) -> World:
    """Half of the drafts are dropped, and they still pay."""
    world = good_drafts(dice)
    return change(world, "work", drafted=3, acceptance=dice.uniform(0.35, 0.55), draft_cost=0.03)


def cpu_only(dice: Random) -> World:
    """No GPU, and none expected."""
    return cpu_world(dice)


def generous_quota(dice: Random) -> World:
    """A quota that is never reached."""
    world = gpu_world(dice)
    return change(world, "work", quota=float(world.host.logical))


def busy_host(dice: Random) -> World:
    """Others use the CPU, and enough of it is left."""
    world = gpu_world(dice)
    return change(world, "others", cores=Level(world.host.logical * 0.4, 0.0))


def big_neighbour_in_memory(dice: Random) -> World:
    """Another process holds VRAM that nobody misses."""
    world = gpu_world(dice, cards=BIG_CARDS, kinds=("llama-server",))
    room = room_gib(world) - need_gib(world)
    held = max(room - 1.2, 0.2)
    world = change(world, "others", gpu_gib=held, gpu_name="ComfyUI")
    return change(world, "past", others_at_load_gib=held)


def good_drafts(dice: Random) -> World:
    """Speculation that pays."""
    world = gpu_world(dice, kinds=("llama-server", "vllm", "sglang"))
    world = change(world, "engine", speculative=True)
    return change(world, "work", drafted=4, acceptance=dice.uniform(0.6, 0.85), draft_cost=0.05)


def first_request(dice: Random) -> World:
    """Cold: clocks still have to rise, nothing was learned."""
    world = change(gpu_world(dice), "nature", warm=0.0)
    return change(world, "past", before="nothing", count=0)


def in_container(dice: Random) -> World:
    """Processes on the GPU have the host's pids: who is who cannot be told."""
    world = gpu_world(dice, kinds=("llama-server", "vllm"))
    return change(world, "sight", private_pids=True)


def whole_reply(dice: Random) -> World:
    """Not streamed."""
    world = gpu_world(dice, kinds=("llama-server",))
    return change(world, "request", stream=False)


def lossy_sampling(dice: Random) -> World:
    """Many samples are missing."""
    return change(gpu_world(dice), "sight", lost_samples=dice.uniform(0.2, 0.6))


def under_wsl(dice: Random) -> World:
    """WSL2 shows no processes on the GPU."""
    world = gpu_world(dice, cards=GEFORCE, kinds=("llama-server", "ollama"))
    return change(world, "host", system="wsl2")


def two_sessions_ago(dice: Random) -> World:
    """It was slow before, and is well again."""
    world = gpu_world(dice)
    return change(world, "past", slow_recently=2, causes=("gpu-shared",), before="well", count=12)


HEALTHY: dict[str, Callable[[Random], World]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        plain, plain, plain, capped_but_fine, hot_but_fine, filled_by_vllm, layer_split,
        tensor_parallel,
        idle_second_gpu, compositor, short, harmless_batch, blip, long_context, new_conversation,
        narrow_link, unified, laptop, virtual,
        always_like_this, dropped_drafts, cpu_only, cpu_only, generous_quota, busy_host,
        big_neighbour_in_memory, good_drafts, first_request, in_container, whole_reply,
        lossy_sampling, under_wsl, two_sessions_ago,
    )
}  # fmt: skip

HEALTHY |= prompt_faults.HEALTHY

LOOKS_LIKE: Mapping[str, frozenset[str]] = {
    "harmless-batch": frozenset({"batch-shared"}),
    "compositor": frozenset({"gpu-shared"}),
    "busy-host": frozenset({"host-contention"}),
    "capped-but-fine": frozenset({"power-cap"}),
    "dropped-drafts": frozenset({"draft-rejected"}),
    "good-drafts": frozenset({"draft-rejected"}),
}
"""What is there in them, and may be named where it turns out to cost something after all."""
