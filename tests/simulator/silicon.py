"""One GPU over time: clocks, power, heat and the counters that they drive.

Power follows activity and clocks; heat follows power, slowly; a limit on either takes clocks away
until it is met. That is all: what a throttled card looks like is a consequence.
"""

import math
from dataclasses import dataclass

from simulator.cards import Card
from simulator.world import World

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
HEAT_S = 25.0  # how long a cooler takes to follow
IDLE_MEMORY_MHZ, IDLE_SM_MHZ = 405, 300
RAMP_S = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a GPU is given to do: shares of time and of its peak rates."""

    busy: float
    stalled: float = 0.0
    traffic: float = 0.0
    compute: float = 0.35
    rx_bytes_per_s: float = 0.0
    tx_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """What is true of one GPU at one time."""

    at_s: float
    busy: float
    memory_busy: float
    dram: float
    power_w: float
    limit_w: float
    sm: float
    memory: float
    pstate: int
    temperature_c: float
    reasons: int
    rx: float
    tx: float
    energy_j: float
    power_ns: float
    sw_heat_ns: float
    hw_heat_ns: float
    brake_ns: float


class Silicon:
    """A GPU that is stepped through time."""

    def __init__(self, card: Card, world: World, *, warm: float) -> None:
        self._card, self._world = card, world
        nature = world.nature
        self._limit_c = world.clocks.throttle_at_c or card.slowdown_c - 7.0
        full_c = (card.slowdown_c - 18 - nature.ambient_c) / nature.cooling
        self._rise_c = full_c / card.power_w
        steady = nature.ambient_c + self._rise_c * card.power_w * nature.decode_power * warm
        self._temperature_c = min(steady, self._limit_c + 1)
        self._held = 1.0
        self._capped = 1.0
        self._active_s = 0.0
        self._energy_j = 5e4
        self._ns = [3.1e11, 9.0e8, 4.0e7, 1.0e7]
        self.sm, self.memory = 0.9, card.busy_memory_mhz / card.memory_mhz

    def step(self, at_s: float, dt: float, load: Load) -> State:
        """Let `dt` seconds pass under this load."""
        card, clocks = self._card, self._world.clocks
        limit_w = card.power_w * clocks.limit_ratio.at(at_s)
        asleep = load.busy + load.stalled < 0.03
        self._active_s = 0.0 if asleep else self._active_s + dt
        brake = clocks.brake.at(at_s)
        wish = min(clocks.sm.at(at_s), brake) * 0.96
        starved = load.busy + load.stalled < 0.35
        sm = min(wish, self._held, self._capped) * (0.72 if starved else 1.0)
        memory = min(card.busy_memory_mhz / card.memory_mhz, clocks.memory.at(at_s))
        if asleep or self._active_s < RAMP_S * 0.3:
            sm = min(sm, IDLE_SM_MHZ / card.sm_mhz)
            memory = min(memory, IDLE_MEMORY_MHZ / card.memory_mhz) if asleep else memory
        power_w = self._power(load, sm)
        reasons = self._limit(power_w, limit_w, load, wish, brake, dt)
        power_w = min(power_w, max(limit_w * 1.03, card.power_w * 0.12))
        self._warm(power_w, dt)
        reasons |= self._heat(dt)
        if starved:
            reasons |= IDLE if asleep or int(at_s * 7) % 2 else 0
        self.sm, self.memory = sm, memory
        self._count(reasons, power_w, dt)
        return State(
            at_s,
            min(load.busy + load.stalled, 1.0),
            min((0.25 + 0.7 * load.traffic) * load.busy + 0.03 * load.stalled, 1.0),
            min(load.traffic * load.busy * self._world.nature.efficiency, 1.0),
            power_w,
            limit_w,
            sm,
            memory,
            8 if asleep else (0 if card.datacenter else 2),
            self._temperature_c,
            reasons,
            load.rx_bytes_per_s,
            load.tx_bytes_per_s,
            self._energy_j,
            *self._ns,
        )

    def _power(self, load: Load, sm: float) -> float:
        nature, card = self._world.nature, self._card
        idle = nature.idle_power
        top = nature.decode_power if load.compute < 0.6 else nature.prefill_power
        at_work = 0.45 * sm**2 / 0.92 * (0.35 + load.compute) / 0.7 + 0.55 * load.traffic
        dynamic = (top - idle) * (load.busy * min(at_work, 1.1) + load.stalled * 0.22)
        return card.power_w * (idle + max(dynamic, 0.0))

    def _limit(
        self, power_w: float, limit_w: float, load: Load, wish: float, brake: float, dt: float
    ) -> int:
        """Take clocks away while power is above its limit, and give them back below it."""
        reasons = 0
        if power_w > limit_w:
            self._capped = max(self._capped * (limit_w / power_w) ** 0.8, 0.14)
        elif self._capped < wish:
            self._capped = min(self._capped * (1 + 0.4 * dt), wish)
        if self._capped < wish * 0.995 and load.busy > 0.2:
            reasons |= POWER_CAP
        if brake < 1 and self._world.clocks.brake_told:
            reasons |= POWER_BRAKE | HW_SLOWDOWN
        return reasons

    def _warm(self, power_w: float, dt: float) -> None:
        steady = self._world.nature.ambient_c + self._rise_c * power_w
        self._temperature_c += (steady - self._temperature_c) * (1 - math.exp(-dt / HEAT_S))

    def _heat(self, dt: float) -> int:
        """Take clocks away while the chip, or its memory, is too hot."""
        clocks = self._world.clocks
        too_hot = self._temperature_c >= self._limit_c
        if too_hot:
            self._held = max(
                self._held - 0.25 * dt * (1 + self._temperature_c - self._limit_c), 0.2
            )
        elif self._temperature_c < self._limit_c - 1.5:
            self._held = min(self._held + 0.06 * dt, 1.0)
        if clocks.hard_heat and too_hot:
            self._held = min(self._held, 0.45)
            return HW_THERMAL | HW_SLOWDOWN
        return SW_THERMAL if self._held < 0.97 or (too_hot and self._held < 1) else 0

    def _count(self, reasons: int, power_w: float, dt: float) -> None:
        self._energy_j += power_w * dt
        for at, bit in enumerate((POWER_CAP, SW_THERMAL, HW_THERMAL, POWER_BRAKE)):
            if reasons & bit:
                self._ns[at] += dt * 1e9
