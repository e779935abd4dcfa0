"""What a fault costs: the same run without it, held beside the run with it.

That is the truth which the diagnosis is scored against. No detector and no expectation of the
product has a say in it: the machine without its fault has the same cards, the same hidden
efficiency, the same engine and the same request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.physics import decode_pass
from simulator.run import Trace, run
from simulator.world import (
    Clocks,
    Engine,
    Engineering,
    Health,
    Link,
    Others,
    Placement,
    Request,
    Waits,
    World,
)
from slowtok.detectors.case.case import Phase

COOL, COOL_C = 1.0, 26.0
LITTLE_GAIN = 1.15


@dataclass(frozen=True, slots=True)
class Cost:
    """How long a phase took, how long it would have taken, and what the loss is a share of."""

    took_s: float
    well_s: float
    of_s: float

    @property
    def lost_s(self) -> float:
        """Seconds that the fault cost in this phase."""
        return self.took_s - self.well_s

    @property
    def ratio(self) -> float:
        """What was lost, as a share of what the phase should have taken."""
        return self.lost_s / max(self.of_s, 1e-9)


def without_fault(world: World) -> World:
    """Return the same machine, engine and request with nothing wrong.

    GPUs that compute each layer together stay so only where that is faster than taking turns.
    """
    request = world.request
    known = request.common if request.shared is None else request.shared
    cached = max(request.cached, int(request.prompt * known * 0.98))
    place = Placement() if world.cards else Placement(gpu_ratio=0.0, kv_gpu_ratio=0.0)
    twin = replace(
        world,
        engine=_well_set(world.engine, world),
        request=_cached(request, cached),
        nature=replace(
            world.nature,
            cooling=max(world.nature.cooling, COOL),
            ambient_c=min(world.nature.ambient_c, COOL_C),
        ),
        placement=place,
        clocks=Clocks(),
        others=Others(),
        work=Engineering(),
        waits=Waits(),
        link=Link(),
        health=Health(),
    )
    if not twin.engine.computes_together or len(twin.used_cards) < 2:
        return twin
    apart = replace(twin, engine=replace(twin.engine, tensor_parallel=1, split_mode="layer"))
    return min(twin, apart, key=steady_token_s)


def talks_for_nothing(world: World) -> bool:
    """Whether GPUs that compute each layer together gain next to nothing over taking turns.

    Then they lose nothing, and whoever bought them will call it slow nevertheless.
    """
    if not world.engine.computes_together or len(world.used_cards) < 2:
        return False
    apart = replace(world, engine=replace(world.engine, tensor_parallel=1, split_mode="layer"))
    return steady_token_s(world) > steady_token_s(apart) / LITTLE_GAIN


def steady_token_s(world: World, at_s: float = 9.0) -> float:
    """Return the time of one token at clocks of a healthy GPU; the caller asks for many."""
    memory = min((c.busy_memory_mhz / c.memory_mhz for c in world.used_cards), default=1.0)
    wish = min(world.clocks.sm.at(at_s), world.clocks.brake.at(at_s)) * 0.96
    memory = min(memory, world.clocks.memory.at(at_s))
    context = world.request.prompt + world.request.completion / 2
    work = decode_pass(world, at_s, context, wish, memory)
    return work.total_s / work.tokens


def costs(world: World) -> Mapping[Phase, Cost]:
    """Return what each phase of a run lost; a wait is held against the whole request."""
    twin = without_fault(world)
    ours, well = run(world), run(twin)
    whole_s = well.last_s
    waits = world.waits
    return {
        "queue": Cost(waits.queue_s, 0.0, whole_s),
        "load": Cost(waits.load_s, 0.0, whole_s),
        "prefill": _prefill(ours, well),
        "decode": _decode(ours, well),
        "delivery": Cost(_late_s(world, ours), 0.0, whole_s),
    }


def _prefill(ours: Trace, well: Trace) -> Cost:
    usual_s = well.first_s - well.prefill_from_s
    return Cost(ours.first_s - ours.prefill_from_s, usual_s, usual_s)


def _decode(ours: Trace, well: Trace) -> Cost:
    usual_s = well.last_s - well.first_s
    return Cost(ours.last_s - ours.first_s, usual_s, usual_s)


def _late_s(world: World, trace: Trace) -> float:
    """Return what came after the engine was done, or before it was asked."""
    waits = world.waits
    stretched_s = waits.network_ratio * (trace.last_s - trace.first_s)
    return stretched_s + waits.blocked_s + waits.proxy_s


def _well_set(engine: Engine, world: World) -> Engine:
    return replace(engine, threads=world.host.fast_cores, eager=False, offload_gib=0.0)


def _cached(request: Request, cached: int) -> Request:
    return replace(request, cached=min(cached, max(request.prompt - 1, 0)))
