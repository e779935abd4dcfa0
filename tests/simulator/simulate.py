"""From a world to a case, and to the plain truth about it."""

from dataclasses import dataclass, field, replace
from random import Random

from simulator import facts
from simulator.arrivals import SENT_AT_S, timeline
from simulator.physics import decode_pass
from simulator.readings import gpu_samples, host_samples
from simulator.run import Trace, run
from simulator.world import (
    Clocks,
    Engineering,
    Health,
    Link,
    Others,
    Placement,
    Waits,
    World,
)
from slowtok.detectors.case import Case, EngineTimings, Phase
from slowtok.detectors.engine import EngineActivity
from slowtok.detectors.expectation import with_expectation
from slowtok.proxy.stream.phases import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is right to say. An empty `primary` with `slow` means: say that it is not known.

    `slow` None means that both verdicts are right: so near the gate that noise decides.
    `allowed` are causes that are true, too, and may stand beside a primary one.
    """

    slow: bool | None
    primary: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    phase: Phase = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One labelled run: `name` says what was done, `seed` makes its noise."""

    name: str
    seed: int
    world: World
    truth: Truth = field(default_factory=lambda: Truth(slow=False))


def simulate(scenario: Scenario) -> Case:
    """Return the case that the product would have made of this run."""
    world, dice = scenario.world, Random(f"noise {scenario.seed}")
    trace = run(world)
    line = timeline(world, trace, dice)
    counted = facts.activity(world, trace)
    case = Case(
        timeline=line,
        phases=split(
            line,
            early_head=world.engine.kind == "llama-server",
            slept=world.waits.slept,
            alone=world.waits.in_flight == 0 and not world.others.neighbours.at(0.0),
            counted=_counted(counted),
        ),
        prompt=facts.prompt(world),
        neighbours=facts.neighbours(world, trace),
        host=tuple(host_samples(world, trace, SENT_AT_S, dice)),
        gpu=tuple(gpu_samples(world, trace, SENT_AT_S, dice)),
        server=facts.server_facts(world),
        activity=counted,
        model=world.model.facts(world.quantisation),
        device=facts.device_facts(world),
    )
    usual = healthy_tps(world)
    case = replace(
        case,
        baseline=facts.baseline(world, usual, dice),
        history=facts.history(world, case, usual, dice),
    )
    return with_expectation(case)


def healthy(world: World) -> World:
    """Return the world with nothing wrong: the same machine, engine and request."""
    nature_clocks = Clocks(limit_ratio=world.clocks.limit_ratio)
    place = Placement() if world.cards else Placement(gpu_ratio=0.0, kv_gpu_ratio=0.0)
    return replace(
        world,
        placement=place,
        clocks=nature_clocks if world.clocks.limit_ratio.value > 0.95 else Clocks(),
        others=Others(),
        work=Engineering(drafted=0),
        waits=Waits(),
        link=Link(),
        health=Health(),
    )


def healthy_tps(world: World) -> float:
    """Return the rate of the same request on the same setup when all is well."""
    context = world.request.prompt + world.request.completion / 2
    memory = min((c.busy_memory_mhz / c.memory_mhz for c in world.used_cards), default=1.0)
    return 1 / decode_pass(healthy(world), 1.0, context, 0.93, memory).total_s


def decode_tps(world: World, trace: Trace) -> float:
    """Return the rate of a run by the engine's own clock."""
    return (world.request.completion - 1) / max(trace.last_s - trace.first_s, 1e-9)


def _counted(activity: EngineActivity | None) -> EngineTimings | None:
    if activity is None or not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s, prefill_s=activity.prefill_s, decode_s=activity.decode_s
    )
