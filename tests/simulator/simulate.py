"""From a world to a case, and to the plain truth about it."""

from dataclasses import dataclass, field, replace
from random import Random

from simulator import facts
from simulator.arrivals import SENT_AT_S, timeline
from simulator.cost import without_fault
from simulator.readings import gpu_samples, host_samples
from simulator.run import Trace, run
from simulator.world import World
from slowtok.detectors.case.case import Case, EngineTimings, Phase
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.expectation.envelope import with_expectation
from slowtok.proxy.stream.phases import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is right to say. An empty `primary` with `slow` means: say that it is not known.

    `slow` None means that both verdicts are right: what it costs is neither nothing nor much.
    `allowed` are causes that are true, too, and may stand beside a primary one. `cost` is the share
    that the phase lost that lost most, as a share of what it should have taken.
    """

    slow: bool | None
    primary: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()
    phase: Phase = "decode"
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One labelled run: `name` says what was done, `seed` makes its noise.

    `blind` names what could not be seen on this machine.
    """

    name: str
    seed: int
    world: World
    truth: Truth = field(default_factory=lambda: Truth(slow=False))
    blind: tuple[str, ...] = ()


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
            was_unloaded=world.waits.slept,
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
    usual, same = healthy_tps(world), decode_tps(world, trace)
    case = replace(
        case,
        baseline=facts.baseline(world, usual, same, dice),
        history=facts.history(world, case, usual, same, dice),
    )
    return with_expectation(case)


def healthy_tps(world: World) -> float:
    """Return the rate of the same request on the same setup when all is well."""
    twin = without_fault(world)
    return decode_tps(twin, run(twin))


def decode_tps(world: World, trace: Trace) -> float:
    """Return the rate of a run by the engine's own clock."""
    return (world.request.completion - 1) / max(trace.last_s - trace.first_s, 1e-9)


def _counted(activity: EngineActivity | None) -> EngineTimings | None:
    if activity is None or not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s, prefill_s=activity.prefill_s, decode_s=activity.decode_s
    )
