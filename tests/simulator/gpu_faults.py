"""Faults of the GPU: heat, power, clocks, others on it, its link, its health."""

from collections.abc import Callable
from random import Random

from simulator.cards import DATACENTER, GEFORCE, LAPTOPS, RADEON, UNIFIED, VGPUS
from simulator.cost import steady_token_s, without_fault
from simulator.physics import prefill_s
from simulator.setups import ALL_CARDS, gpu_world, lasting, log_uniform, sized, standing
from simulator.simulate import Truth
from simulator.world import FULL, Kind, Level, World, change


def _truth(*primary: str, allowed: tuple[str, ...] = ()) -> Truth:
    return Truth(slow=None, primary=frozenset(primary), allowed=frozenset(allowed))


def _onset(dice: Random) -> float:
    """Most faults are there from the beginning, the others come in the middle, or near the end."""
    return dice.choice((0.0, 0.0, dice.uniform(1.0, 12.0)))


def thermal_throttle(dice: Random) -> tuple[World, Truth]:
    """Too hot: the chip, severely, or only its memory."""
    cards = (*GEFORCE, *LAPTOPS, *DATACENTER)
    world = gpu_world(dice, cards=cards)
    card = world.cards[0]
    world = change(
        world,
        "nature",
        cooling=dice.uniform(0.25, 0.65),
        ambient_c=dice.uniform(30, 42),
        warm=1.0,
        decode_power=dice.uniform(0.6, 0.97),
        knee=dice.uniform(0.65, 0.9),
    )
    how = dice.choice(("soft", "soft", "hard", "memory"))
    if how == "hard":
        world = change(world, "clocks", hard_heat=True)
    elif how == "memory":
        low = card.slowdown_c - dice.uniform(18, 28)
        world = change(world, "clocks", memory_heat=True, throttle_at_c=low)
    return lasting(world, dice, (15, 40)), _truth(
        "thermal-throttle", allowed=("hardware-slowdown", "power-cap", "slow-prefill")
    )


def power_cap(dice: Random) -> tuple[World, Truth]:
    """A limit so low that even the memory is kept waiting."""
    world = gpu_world(dice, cards=(*GEFORCE, *DATACENTER))
    power, knee = dice.uniform(0.7, 1.0), dice.uniform(0.6, 0.9)
    world = change(world, "nature", decode_power=power, knee=knee)
    limit = Level(log_uniform(dice, 0.22, 0.85), 1.0, from_s=_onset(dice))
    world = change(world, "clocks", limit_ratio=limit)
    return lasting(world, dice, (6, 25)), _truth("power-cap", allowed=("slow-prefill",))


def hardware_slowdown(dice: Random) -> tuple[World, Truth]:
    """The power supply pulls the brake."""
    world = gpu_world(dice, cards=(*GEFORCE, *DATACENTER))
    onset, duty = _onset(dice), dice.choice((1.0, 1.0, 0.6, 0.3))
    ratio = sized(
        dice, lambda x: change(world, "clocks", brake=Level(1 - 0.93 * x, 1.0))
    ).clocks.brake.value
    brake = Level(ratio, 1.0, from_s=onset, period_s=dice.uniform(1.0, 6.0), duty=duty)
    world = change(world, "clocks", brake=brake)
    return lasting(world, dice, (15, 30)), _truth(
        "hardware-slowdown", allowed=("slow-prefill", "clocks-stuck")
    )


def clocks_stuck(dice: Random) -> tuple[World, Truth]:
    """Clocks that stay low under load, for no reason that is told."""
    cards = tuple(c for c in ALL_CARDS if c not in (*LAPTOPS, *RADEON))
    world = gpu_world(dice, cards=cards)
    if dice.random() < 0.6 or world.cards[0].is_hbm or world.cards[0].unified:
        world = sized(dice, lambda x: change(world, "clocks", sm=Level(1 - 0.93 * x, 1.0)))
    else:
        card = world.cards[0]
        mhz = dice.choice((405, 810, card.memory_mhz * 0.5, card.memory_mhz * 0.7))
        world = change(world, "clocks", memory=Level(min(mhz / card.memory_mhz, 1.0), 1.0))
    return lasting(world, dice, (5, 25)), _truth("clocks-stuck", allowed=("slow-prefill",))


def gpu_shared(dice: Random) -> tuple[World, Truth]:
    """Another process computes on the same GPU."""
    world = gpu_world(dice, cards=(*GEFORCE, *LAPTOPS, *DATACENTER, *UNIFIED))
    share = Level(1 - 1 / log_uniform(dice, 1.1, 10), 0.0, from_s=_onset(dice))
    name = dice.choice(("python", "game.exe", "blender", "ffmpeg"))
    world = change(world, "others", gpu_share=share, gpu_gib=dice.uniform(0.3, 2.0), gpu_name=name)
    return lasting(world, dice, (10, 25)), _truth("gpu-shared", allowed=("slow-prefill",))


def pcie_link(dice: Random) -> tuple[World, Truth]:
    """A link below what card and slot can do, under two GPUs that talk at every layer."""
    world = change(_together(dice), "nature", sync_s=dice.uniform(8e-6, 25e-6))
    generation = dice.choice((1, 2, world.cards[0].generation))
    width = 1 if generation == world.cards[0].generation else dice.choice((1, 2, 4))
    world = change(world, "link", generation=generation, width=width)
    world = change(world, "link", replays=dice.choice((0, 0, 5000)))
    # where the cards would be too slow together over a whole link as well, that is the root
    whole = change(world, "link", generation=None, width=None)
    by_link_s = steady_token_s(world) - steady_token_s(whole)
    by_talk_s = steady_token_s(whole) - steady_token_s(without_fault(world))
    also = ("multi-gpu-split",) if by_talk_s > by_link_s else ()
    return lasting(world, dice, (6, 25)), _truth(
        "pcie-link", *also, allowed=("multi-gpu-split", "slow-prefill")
    )


def multi_gpu_split(dice: Random) -> tuple[World, Truth]:
    """Rows shared over cards whose slots were never made for it: all talk, little work.

    Published: 42 us an exchange on PCIe 3 without a direct way, 157 us with an old Xeon.
    """
    world = _together(dice)
    width = dice.choice((1, 4, 8, None))
    world = change(world, "link", width=width, slot_width=width)
    world = change(world, "nature", sync_s=log_uniform(dice, 30e-6, 200e-6))
    # one lane is as narrow as a riser: the link is a fault of its own then
    also = ("pcie-link",) if world.link.width == 1 else ()
    return lasting(standing(world, dice), dice, (6, 25)), _truth(
        "multi-gpu-split", *also, allowed=("pcie-link", "slow-prefill")
    )


def gpu_fault(dice: Random) -> tuple[World, Truth]:
    """The driver reported an error that ends nothing: a recovery, or repairs from then on.

    Of NVIDIA's errors those after which work goes on: rows remapped (63), many corrected errors
    (92), a contained one (94), a system processor that did not answer (119), a recovery (154).
    """
    world = gpu_world(dice, cards=(*GEFORCE, *DATACENTER))
    begin_s = prefill_s(world, world.request.prompt - world.request.cached, 0.9, 0.0)
    if dice.random() < 0.5:
        after_s, stall_s = dice.uniform(0.5, 4.0), log_uniform(dice, 0.7, 15.0)
        at_s = begin_s + after_s + dice.uniform(0.0, 1.0)
        world = change(world, "work", stalls=((after_s, stall_s),))
        xid, drag, seconds = dice.choice((94, 119, 154)), FULL, (6.0, 14.0)
    else:
        at_s = dice.choice((dice.uniform(0.1, 1.5), begin_s + dice.uniform(3.0, 7.0)))
        xid, seconds = dice.choice((63, 92, 154)), (10.0, 25.0)
        drag = Level(1 / log_uniform(dice, 1.1, 10.0), 1.0, from_s=at_s)
    datacenter = world.cards[0].datacenter
    errors, rows = dice.choice((0, 40)) if datacenter else 0, int(xid == 63)
    world = change(
        world, "health", xid=xid, xid_at_s=at_s, drag=drag, ecc_errors=errors, remapped=rows
    )
    return lasting(world, dice, seconds), _truth(
        "gpu-fault", allowed=("clocks-stuck", "slow-kernel", "slow-prefill")
    )


def vgpu_unlicensed(dice: Random) -> tuple[World, Truth]:
    """A virtual GPU without a licence is held back until it is next to nothing."""
    world = gpu_world(dice, cards=VGPUS)
    world = change(world, "health", virtual=True, licensed=False)
    # 10 to 150 times in reports (ollama/ollama#8023, #1863), after 20 minutes of full speed
    gap_s = steady_token_s(world) * (log_uniform(dice, 2, 60) - 1)
    world = change(world, "work", idle_gap_s=gap_s, prefill=0.1)
    return lasting(world, dice, (6, 25)), _truth(
        "vgpu-unlicensed", allowed=("clocks-stuck", "slow-prefill")
    )


def _together(dice: Random) -> World:
    """Return two GPUs that compute each layer together."""
    kinds: tuple[Kind, ...] = ("llama-server", "vllm", "sglang")
    world = gpu_world(dice, cards=GEFORCE, kinds=kinds, count=2)
    if world.engine.is_torch:
        return change(world, "engine", tensor_parallel=2)
    return change(world, "engine", split_mode="row")


FAULTS: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        thermal_throttle, power_cap, hardware_slowdown, clocks_stuck, gpu_shared, pcie_link,
        multi_gpu_split, gpu_fault, vgpu_unlicensed,
    )
}  # fmt: skip
