"""What can be seen at all on a machine: drawn for every run, whatever is done in it.

Most machines hide something: the engine runs as another user, a cgroup or a counter cannot be
read, a driver call fails, the card is one that its driver has no name for, RAM was never measured.
`CHANCES` says how often each of these is drawn, independently of the others. There are no published
shares: they are chosen so that a third of all runs see everything, and stand in
docs/accuracy.md beside the figures.
"""

from collections.abc import Mapping
from random import Random

from simulator.world import FOREVER, World, change

CHANCES: Mapping[str, float] = {
    "another user's engine": 0.1,
    "late child": 0.05,
    "no cgroup": 0.05,
    "no scheduler statistics": 0.05,
    "no pressure statistics": 0.1,
    "no disk statistics": 0.05,
    "failing GPU call": 0.06,
    "failing GPU fact": 0.06,
    "no GPU processes": 0.04,
    "unknown RAM": 0.25,
    "no gauges": 0.15,
    "many lost samples": 0.05,
}

UNREADABLE: Mapping[str, tuple[str, ...]] = {
    "no cgroup": ("server_quota_cores", "server_throttled_ratio", "server_throttled_s_per_s"),
    "no scheduler statistics": ("server_run_delay_cores", "server_busy_threads"),
    "no pressure statistics": (
        "psi_cpu_some_ratio", "psi_io_full_ratio", "psi_memory_full_ratio",
    ),
    "no disk statistics": ("server_read_bytes_per_s", "server_major_faults_per_s"),
    "no GPU processes": ("processes",),
}  # fmt: skip

FAILING_CALLS = (
    ("power_w",), ("temperature_c",), ("reasons",), ("memory_clock_mhz",), ("sm_clock_mhz",),
    ("busy_ratio", "memory_busy_ratio"), ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
    ("power_limit_w",), ("free_bytes", "total_bytes", "reserved_bytes"), ("pstate",),
    ("throttled_power_ns", "throttled_sw_thermal_ns", "throttled_hw_thermal_ns",
     "throttled_power_brake_ns"),
)  # fmt: skip
"""Fields of samples that come from one call of the driver."""

FAILING_FACTS = (
    ("bus_width_bits", "bandwidth_bytes_per_s"), ("max_memory_clock_mhz", "bandwidth_bytes_per_s"),
    ("architecture",), ("default_power_limit_w", "min_power_limit_w", "max_power_limit_w"),
    ("max_sm_clock_mhz",), ("max_pcie_generation", "max_pcie_width", "gpu_max_pcie_generation"),
)  # fmt: skip
"""Facts of a GPU that fail together; its bandwidth is computed from the first two."""


def seen(world: World, dice: Random) -> tuple[World, tuple[str, ...]]:
    """Return the world as its instruments see it, and the names of what they cannot."""
    blind = tuple(name for name, chance in CHANCES.items() if dice.random() < chance)
    blind = tuple(name for name in blind if _can_be(name, world))
    hidden, silent = set(world.sight.hidden), set(world.sight.silent)
    for name in blind:
        hidden |= set(UNREADABLE.get(name, ()))
        if name == "failing GPU call":
            hidden |= set(dice.choice(FAILING_CALLS))
        elif name == "failing GPU fact":
            silent |= set(dice.choice(FAILING_FACTS))
    world = change(world, "sight", hidden=frozenset(hidden), silent=frozenset(silent))
    if "late child" in blind:
        world = change(world, "sight", server_from_s=dice.uniform(0.5, 6.0))
    if "another user's engine" in blind:
        world = change(world, "sight", server_from_s=FOREVER)
    if "many lost samples" in blind:
        world = change(world, "sight", lost_samples=dice.uniform(0.2, 0.6))
    ram_known = world.sight.ram_known and "unknown RAM" not in blind
    world = change(world, "sight", ram_known=ram_known, gauges="no gauges" not in blind)
    return world, blind


def _can_be(name: str, world: World) -> bool:
    if "GPU" in name:
        return bool(world.cards)
    if name == "no gauges":
        return world.engine.kind != "ollama"
    return not world.waits.remote
