"""Paces sampling so that it stays below its share of a core. Pure.

Strategy: a leaky bucket. CPU time spent beyond the share allowed fills it; when it is full, the
next level of `PACES` holds, which leaves out the costliest first and the fast tier last. A long
stretch that was cheap enough brings the level before back; if that proves too expensive, the next
try waits twice as long. Samples at a request's edges are never slowed: their counters are exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

LIMIT_RATIO = 0.008
"""Of one core, while a request is active. The design allows 0.01; a small excess takes long to
notice, so that some is kept in hand."""

ROOM_RATIO = 0.6
"""Of the limit: below this it may go faster. One level costs up to 1.7 times the next one.
Heuristic."""

BURST_S = 0.02
"""CPU time above the share that is let pass: the counters of eight GPUs take 0.02 s at an edge."""

FIRST_PATIENCE_S, MAX_PATIENCE_S = 15.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPace:
    """Periods in seconds while a request is active.

    `gpu_s` is the fast tier of GPUs, `counters_s` their 1 Hz tier, `lists_s` which processes hold
    memory, `shares_s` how busy each keeps the GPU, `energy_s` the energy between edges, `host_s`
    the machine and the servers, `others_s` which other programs use the CPU. `traffic_s` is that
    of PCIe: 0 counts without a gap, otherwise 0.05 s are counted each time.
    """

    gpu_s: float = 0.1
    counters_s: float = 1.0
    lists_s: float = 1.0
    shares_s: float = 1.0
    traffic_s: float = 0.0
    energy_s: float = 5.0
    host_s: float = 0.2
    others_s: float = 5.0


PACES = (
    SamplingPace(),
    SamplingPace(traffic_s=0.5, energy_s=15.0),
    SamplingPace(traffic_s=1.0, energy_s=60.0, shares_s=2.0, others_s=15.0),
    SamplingPace(
        traffic_s=2.0, energy_s=60.0, shares_s=2.0, lists_s=2.0, others_s=15.0, gpu_s=0.2,
    ),
    SamplingPace(
        traffic_s=5.0, energy_s=60.0, shares_s=5.0, lists_s=5.0, others_s=60.0, gpu_s=0.2,
    ),
    SamplingPace(
        traffic_s=5.0, energy_s=60.0, shares_s=10.0, lists_s=5.0, others_s=60.0, gpu_s=0.2,
    ),
    SamplingPace(
        traffic_s=5.0, energy_s=60.0, shares_s=30.0, lists_s=5.0, others_s=60.0, gpu_s=0.4,
    ),
    SamplingPace(
        traffic_s=10.0, energy_s=60.0, shares_s=30.0, lists_s=10.0, others_s=60.0, gpu_s=0.4,
        host_s=0.4,
    ),
    SamplingPace(
        traffic_s=10.0, energy_s=60.0, shares_s=60.0, lists_s=10.0, others_s=60.0, gpu_s=0.4,
        host_s=1.0, counters_s=5.0,
    ),
)  # fmt: skip
"""Each costs less than the one before. By the costs published for one RTX 5090, traffic takes 0.4 %
of a core for each GPU, shares 0.17 %, the fast tier about 0.1 %, lists 0.03 %. On a slow processor
it is the fast tier that takes most. At 2.5 Hz a decode of 2 s still has five samples of a GPU."""

HIDES = {
    "traffic_s": (1.0, "PCIe traffic during short requests"),
    "shares_s": (2.0, "GPU use of each process during short requests"),
    "counters_s": (2.0, "share of the memory bandwidth in use"),
    "host_s": (0.5, "CPU use during short requests"),
}
"""The longest period at which nothing is lost, and what is lost beyond: a decode is judged from
2 s on, and the monitors of memory traffic do not compare over more than that."""

WHY = "sampling is slowed to stay below 1 % of a core"


class Budget:
    """Chooses the level of `PACES` from what sampling costs."""

    def __init__(self, limit_ratio: float = LIMIT_RATIO) -> None:
        self._limit_ratio = limit_ratio
        self._over_s = 0.0
        self._calm_cpu_s = self._calm_s = 0.0
        self._patience_s = FIRST_PATIENCE_S
        self._tried = False
        self.level = 0

    @property
    def pace(self) -> SamplingPace:
        """How often things are to be sampled now."""
        return PACES[self.level]

    def spend(self, cpu_s: float, wall_s: float) -> bool:
        """Account for a stretch of active time; say whether the pace has changed."""
        self._over_s = max(self._over_s + cpu_s - self._limit_ratio * wall_s, 0.0)
        self._calm_cpu_s += cpu_s
        self._calm_s += wall_s
        if self._over_s > BURST_S:
            return self._slow_down()
        return self._calm_s >= self._patience_s and self._speed_up()

    def _slow_down(self) -> bool:
        if self._tried:  # the last try to go faster was too expensive
            self._patience_s = min(self._patience_s * 2, MAX_PATIENCE_S)
        steps = max(int(self._over_s / BURST_S), 1)
        self._over_s = 0.0
        return self._go_to(min(self.level + steps, len(PACES) - 1), tried=False)

    def _speed_up(self) -> bool:
        if self._tried:  # it went well
            self._patience_s = FIRST_PATIENCE_S
        has_room = self._calm_cpu_s <= ROOM_RATIO * self._limit_ratio * self._calm_s
        level = self.level - 1 if has_room and self.level else self.level
        return self._go_to(level, tried=level < self.level)

    def _go_to(self, level: int, *, tried: bool) -> bool:
        changed, self.level = level != self.level, level
        self._tried = tried
        self._calm_cpu_s = self._calm_s = 0.0
        return changed


def slowed(pace: SamplingPace) -> dict[str, float]:
    """Return what is sampled less often than wished, with its period."""
    periods = {field.name: getattr(pace, field.name) for field in fields(SamplingPace)}
    return {name: s for name, s in periods.items() if s != getattr(PACES[0], name)}


def hidden(periods_s: Mapping[str, float]) -> list[str]:
    """Return what such periods, as `slowed` gives them, take out of sight."""
    return [fact for name, (most_s, fact) in HIDES.items() if periods_s.get(name, most_s) > most_s]
