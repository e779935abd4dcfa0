"""The list of scenarios: what is drawn how often, and which half a scenario belongs to.

A scenario is its name and its number alone: the same ones are the same runs, on any machine. Its
hash says whether those who write detectors may look at it (`tuning`), or it is only counted
(`published`).
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Literal

from simulator import gpu_faults, memory_faults, outer_faults, prompt_faults, server_faults
from simulator.combined import COMBINED
from simulator.cost import costs, talks_for_nothing
from simulator.healthy import HEALTHY, LOOKS_LIKE
from simulator.sight import seen
from simulator.simulate import Scenario, Truth, simulate
from simulator.unexplained import UNEXPLAINED
from simulator.world import World
from slowtok.detectors.case.case import Case

Split = Literal["tuning", "published"]
Group = Literal["fault", "healthy", "unexplained"]

_FAULTY = (
    memory_faults.vram_spill, memory_faults.partial_offload, memory_faults.context_oversized,
    memory_faults.vram_held_by_others, memory_faults.reload_degradation,
    memory_faults.model_too_big, memory_faults.storage_paging,
    *gpu_faults.FAULTS.values(),
    server_faults.cpu_fallback, server_faults.slow_kernel, server_faults.host_bound,
    server_faults.flash_attention_off, server_faults.threads_misconfigured, server_faults.queued,
    server_faults.batch_shared, server_faults.behind_a_prompt, server_faults.kv_preemption,
    server_faults.model_load,
    server_faults.prompt_cache_miss, server_faults.slow_prefill, server_faults.draft_rejected,
    *prompt_faults.FAULTS.values(),
    outer_faults.cpu_quota, outer_faults.host_contention, outer_faults.low_power_mode,
    outer_faults.slow_reader, outer_faults.slow_network, outer_faults.proxy_lag,
)  # fmt: skip
FAULTS: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make for make in _FAULTY
} | COMBINED

SLOW_SHARE, HARMLESS_SHARE = 0.15, 0.05
"""From this share of its phase's time on a loss counts as slow; below the other as nothing."""

FELT_S, UNNOTICED_S = 1.0, 0.1
"""Nobody's flow of thought is broken by less than a second, and a tenth goes unnoticed (Nielsen,
Usability Engineering, 1993): shorter losses are not slow, or nothing, whatever their share."""


def split_of(name: str, number: int) -> Split:
    """Return the half that a scenario belongs to, by its name and number alone."""
    digest = hashlib.sha256(f"{name}/{number}".encode()).digest()
    return "tuning" if digest[0] % 2 else "published"


def group_of(name: str) -> Group:
    """Return what kind of scenario a name stands for."""
    if name in HEALTHY:
        return "healthy"
    return "unexplained" if name in UNEXPLAINED else "fault"


def draw(count: int, split: Split | None = None) -> Iterator[tuple[str, int]]:
    """Yield `count` scenarios: half faults, a tenth unexplained, the rest healthy; in turns."""
    names = {"fault": list(FAULTS), "healthy": list(HEALTHY), "unexplained": list(UNEXPLAINED)}
    order: tuple[Group, ...] = ("fault", "healthy", "fault", "healthy", "fault")
    turn, given = {"fault": 0, "healthy": 0, "unexplained": 0}, 0
    while given < count:
        group: Group = "unexplained" if given % 10 == 9 else order[given % len(order)]
        number, at = divmod(turn[group], len(names[group]))
        turn[group] += 1
        name = names[group][at]
        if split is None or split_of(name, number) == split:
            given += 1
            yield name, number


def build(name: str, number: int) -> tuple[Scenario, Case]:
    """Return a scenario with its case. Whatever its fault costs, it is not drawn again."""
    dice = Random(f"{name}/{number}")
    world, truth = _drawn(name, dice)
    world, blind = seen(world, dice)
    scenario = Scenario(
        name=name, seed=number, world=world, truth=settle(truth, world), blind=blind
    )
    return scenario, simulate(scenario)


def settle(truth: Truth, world: World) -> Truth:
    """Return the truth with whether the run was slow, by what its fault cost it."""
    found = costs(world)
    felt = [c.ratio for c in found.values() if c.ratio >= SLOW_SHARE and c.lost_s >= FELT_S]
    cost = max(felt or [c.ratio for c in found.values() if c.lost_s >= UNNOTICED_S], default=0.0)
    if felt:
        # of a healthy run it would be the simulator's fault: neither verdict is held against it
        slow = True if truth.slow is None else None
        return replace(truth, slow=slow, cost=cost)
    if all(c.ratio < HARMLESS_SHARE or c.lost_s < UNNOTICED_S for c in found.values()):
        if talks_for_nothing(world):
            return replace(truth, slow=None, cost=cost)
        allowed = truth.allowed & INFORMATIONAL
        return replace(truth, slow=False, primary=frozenset(), allowed=allowed, cost=cost)
    return replace(truth, slow=None, cost=cost)


INFORMATIONAL = frozenset({"long-context", "oversized-prompt", "long-thinking"})
"""What may be said of a run that lost nothing: it explains a normal one."""


def _drawn(name: str, dice: Random) -> tuple[World, Truth]:
    if name in HEALTHY:
        return HEALTHY[name](dice), Truth(slow=False, allowed=LOOKS_LIKE.get(name, frozenset()))
    return (FAULTS.get(name) or UNEXPLAINED[name])(dice)
