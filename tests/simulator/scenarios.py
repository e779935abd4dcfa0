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

from simulator import gpu_faults, memory_faults, outer_faults, server_faults
from simulator.combined import COMBINED
from simulator.healthy import HEALTHY
from simulator.simulate import Scenario, Truth, simulate
from simulator.unexplained import UNEXPLAINED
from simulator.world import World
from slowtok.detectors.case import Case

Split = Literal["tuning", "published"]
Group = Literal["fault", "healthy", "unexplained"]

_FAULTY = (
    memory_faults.vram_spill, memory_faults.partial_offload, memory_faults.context_oversized,
    memory_faults.vram_held_by_others, memory_faults.reload_degradation,
    memory_faults.model_too_big, memory_faults.storage_paging,
    *gpu_faults.FAULTS.values(),
    server_faults.cpu_fallback, server_faults.slow_kernel, server_faults.host_bound,
    server_faults.flash_attention_off, server_faults.threads_misconfigured, server_faults.queued,
    server_faults.batch_shared, server_faults.kv_preemption, server_faults.model_load,
    server_faults.prompt_cache_miss, server_faults.slow_prefill, server_faults.draft_rejected,
    server_faults.long_context,
    outer_faults.cpu_quota, outer_faults.host_contention, outer_faults.low_power_mode,
    outer_faults.slow_reader, outer_faults.slow_network, outer_faults.proxy_lag,
)  # fmt: skip
FAULTS: dict[str, Callable[[Random], tuple[World, Truth]]] = {
    make.__name__.replace("_", "-"): make for make in _FAULTY
} | COMBINED

GATE_MARGIN = 0.04
"""So near its gate (as a share of it), noise decides whether a decode is slow."""

TRIES = 5
MILD_SHARE = 0.1
LEAST_WAIT_S, LEAST_WAIT_RATIO = 0.5, 0.1
"""Shorter waits are not slow, by the definition of the verdict."""


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
    """Return a scenario with its case; a fault that costs too little is mostly drawn again."""
    dice = Random(f"{name}/{number}")
    for attempt in range(TRIES):
        scenario = _one(name, number * TRIES + attempt, dice)
        case = simulate(scenario)
        scenario = replace(scenario, truth=settle(scenario.truth, scenario.world, case))
        if group_of(name) == "healthy" or scenario.truth.slow or dice.random() < MILD_SHARE:
            break
    return scenario, case


def settle(truth: Truth, world: World, case: Case) -> Truth:
    """Return the truth with whether the run was slow, by the definition of that word alone."""
    if truth.slow is not None:
        return truth
    slow = _is_slow(truth, world, case)
    if slow is False:
        everything = truth.primary | truth.allowed
        return replace(truth, slow=False, primary=frozenset(), allowed=everything)
    return replace(truth, slow=slow)


def _is_slow(truth: Truth, world: World, case: Case) -> bool | None:
    decode, prefill = _decode_is_slow(world, case), _prefill_is_slow(case)
    if truth.primary == {"slow-prefill"}:
        return decode or prefill
    if truth.phase == "decode" or decode:
        # a fault of the whole GPU may have made the prefill slow alone: both are right then
        return None if decode is False and prefill is not False else decode
    return _wait_is_slow(truth, world, case)


def _wait_is_slow(truth: Truth, world: World, case: Case) -> bool | None:
    """Hold the least and the most that a phase may have lost against what counts as a wait."""
    waits, prefill_s, late_s = world.waits, case.phases.prefill_s or 0.0, _late_s(case)
    least_s, most_s = {
        "queue": (waits.queue_s, waits.queue_s),
        "load": (waits.load_s, waits.load_s),
        "prefill": (prefill_s * 0.6, prefill_s),
        "delivery": (late_s, late_s),
    }[truth.phase]
    gate_s = max(LEAST_WAIT_S, LEAST_WAIT_RATIO * case.phases.total_s)
    if least_s >= gate_s * 1.1:
        return True
    return False if most_s < gate_s * 0.9 else None


def _late_s(case: Case) -> float:
    """Return what came after the engine was done, or before it was asked."""
    phases, line = case.phases, case.timeline
    stretched = (phases.decode_stream_s or 0.0) - (phases.decode_s or 0.0)
    return max(stretched, line.client_blocked_s, line.proxy_s)


def _decode_is_slow(world: World, case: Case) -> bool | None:
    """Where tokens are drafted, other text gives other rates: what was before is no measure."""
    rate, band, learned = case.phases.decode_tps, case.envelope.decode, case.baseline.decode_tps
    edges = [] if band is None else [band.low]
    if learned is not None and case.baseline.count >= 5 and not world.engine.speculative:
        edges.append(0.85 * learned)
    if rate is None or not edges:
        return None
    gate = max(edges)
    if abs(rate / gate - 1) < GATE_MARGIN:
        return None
    long_enough = (case.phases.decode_s or 0) > 2.2 and (case.timeline.tokens.completion or 0) > 34
    return rate < gate and long_enough


def _prefill_is_slow(case: Case) -> bool | None:
    """Hold a prefill that is long enough against its band, and against what it gave before."""
    rate, band, best = case.phases.prefill_tps, case.envelope.prefill, case.history.best_prefill_tps
    edges = [] if band is None else [band.low]
    if best is not None and (case.timeline.tokens.prompt or 0) <= 4096:
        edges.append(0.5 * best)
    if rate is None or not edges:
        return False
    gate, took_s = max(edges), case.phases.prefill_s or 0.0
    if abs(rate / gate - 1) < GATE_MARGIN:
        return None
    long_enough = took_s > 2.2 and (case.timeline.tokens.processed or 0) >= 256
    usual = max(best or 0.0, case.envelope.expected_prefill_tps or 0.0, gate)
    felt_s = max(LEAST_WAIT_S, LEAST_WAIT_RATIO * case.phases.total_s)
    return rate < gate and long_enough and took_s * (1 - rate / usual) > felt_s


def _one(name: str, seed: int, dice: Random) -> Scenario:
    if name in HEALTHY:
        return Scenario(name=name, seed=seed, world=HEALTHY[name](dice))
    world, truth = (FAULTS.get(name) or UNEXPLAINED[name])(dice)
    return Scenario(name=name, seed=seed, world=world, truth=truth)
