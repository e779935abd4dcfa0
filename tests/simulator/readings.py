"""What the instruments show of a trace: late, averaged, rounded, and sometimes not at all.

GPU utilisation is a mean over the last part of a second, power of Ampere and newer over a whole
one; processes, links and counters come once a second; clocks come in steps of 15 MHz.
"""

from bisect import bisect_right
from random import Random
from typing import Any

from simulator.cards import GIB, MIB, Card
from simulator.contract import made
from simulator.run import Trace
from simulator.silicon import State
from simulator.world import World
from slowtok.detectors.case.machine import GpuProcess, GpuSample, HostSample

GPU_S, HOST_S, SLOW_S = 0.1, 0.2, 1.0
UTILISATION_S, POWER_S = 0.5, 1.0
SERVER_PID = 4711
SERVER_NAMES = {
    "llama-server": "llama-server",
    "ollama": "ollama",
    "vllm": "VLLM::EngineCore",
    "sglang": "sglang::scheduler",
}
COUNTERS = (
    "processes",
    "pcie_generation",
    "pcie_width",
    "energy_j",
    "throttled_power_ns",
    "throttled_sw_thermal_ns",
    "throttled_hw_thermal_ns",
    "throttled_power_brake_ns",
    "power_source",
    "vgpu_licensed",
    "ecc_errors",
    "remapped_rows",
    "pcie_replays",
    "dram_busy_ratio",
    "memory_temperature_c",
    "power_limit_w",
)


def gpu_samples(world: World, trace: Trace, sent_at_s: float, dice: Random) -> list[GpuSample]:
    """Return the samples of all GPUs, in time."""
    if not world.sight.gpu_samples or not world.sight.gpus or world.waits.remote:
        return []
    samples = [
        sample
        for index, (card, states) in enumerate(zip(world.cards, trace.gpus, strict=True))
        for sample in _one_gpu(world, card, index, states, sent_at_s, dice)
    ]
    return sorted(samples, key=lambda sample: sample.at_s)


def _one_gpu(
    world: World, card: Card, index: int, states: list[State], sent_at_s: float, dice: Random
) -> list[GpuSample]:
    times = [state.at_s for state in states]
    busy, power = _running(states, "busy"), _running(states, "power_w")
    memory_busy = _running(states, "memory_busy")
    end_s, at_s, slow_s = times[-1], dice.uniform(0, GPU_S), -1.0
    samples, absent = [], set(card.facts(index).absent) | world.sight.hidden
    while at_s <= end_s:
        state = states[max(bisect_right(times, at_s) - 1, 0)]
        window = _Window(times, at_s)
        is_slow = at_s - slow_s >= SLOW_S or at_s + GPU_S > end_s
        values: dict[str, Any] = {
            "busy_ratio": _percent(window.mean(busy, UTILISATION_S), dice, 0.015),
            "memory_busy_ratio": _percent(window.mean(memory_busy, UTILISATION_S), dice, 0.02),
            "power_w": _watts(window, state, power, card, dice),
            "sm_clock_mhz": _clock(state.sm * card.sm_mhz, dice),
            "memory_clock_mhz": _memory_clock(state.memory * card.memory_mhz),
            "pstate": state.pstate,
            "reasons": _reasons(world, state, at_s),
            "temperature_c": round(state.temperature_c + dice.gauss(0, 0.3)),
            "temperature_margin_c": round(card.slowdown_c - 4 - state.temperature_c),
            "pcie_rx_bytes_per_s": state.rx * dice.gauss(1, 0.08) + 4e5,
            "pcie_tx_bytes_per_s": state.tx * dice.gauss(1, 0.08) + 3e5,
            **_memory(world, card, index),
            **_faults(world, index, at_s),
        }
        if is_slow:
            slow_s = at_s
            values |= _seldom(world, card, state, dice) | {
                "processes": _processes(world, card, index, at_s)
            }
        kept = {name: value for name, value in values.items() if name not in absent}
        if dice.random() >= world.sight.lost_samples:
            samples.append(made(GpuSample, at_s=sent_at_s + at_s, index=index, **kept))
        at_s += GPU_S + dice.gauss(0, 0.002)
    return samples


def _running(states: list[State], name: str) -> list[float]:
    sums = [0.0]
    for state, later in zip(states, [*states[1:], states[-1]], strict=True):
        sums.append(sums[-1] + getattr(state, name) * max(later.at_s - state.at_s, 1e-9))
    return sums


class _Window:
    """Means over the time that ends at one moment; before the beginning all was idle."""

    def __init__(self, times: list[float], at_s: float) -> None:
        self._times, self._at_s = times, at_s
        self._end = bisect_right(times, at_s) - 1

    def mean(self, sums: list[float], span_s: float) -> float:
        end = max(self._end, 0)
        begin = max(bisect_right(self._times, self._at_s - span_s) - 1, 0)
        if end <= begin:
            last = min(end + 1, len(sums) - 1)
            width = self._times[last] - self._times[end] if last < len(self._times) else 0.0
            return (sums[last] - sums[end]) / width if width > 1e-6 else 0.0
        lived_s = self._times[end] - self._times[begin]
        asleep_s = max(span_s - (self._at_s - self._times[0]), 0.0)
        return (sums[end] - sums[begin]) / (lived_s + asleep_s)


def _watts(
    window: _Window, state: State, power: list[float], card: Card, dice: Random
) -> float | None:
    true_w = window.mean(power, POWER_S) if card.windowed_power else state.power_w
    return round(max(true_w * dice.gauss(1, 0.012), card.power_w * 0.03), 1)


def _percent(ratio: float, dice: Random, noise: float) -> float:
    return round(min(max(ratio * dice.gauss(1, noise), 0.0), 1.0), 2)


def _clock(mhz: float, dice: Random) -> int:
    return int(mhz + dice.choice((-15, 0, 0, 15))) // 15 * 15


def _memory_clock(mhz: float) -> int:
    return round(mhz)


def _reasons(world: World, state: State, at_s: float) -> int:
    blip = any(abs(at_s - when) < GPU_S / 2 for when in world.clocks.blips)
    return state.reasons | (0x8 if blip else 0)


def _memory(world: World, card: Card, index: int) -> dict[str, Any]:
    if card.unified:
        return {}
    held = server_bytes(world, index) + world.others.gpu_gib * GIB * (index == 0) + 160 * MIB
    if world.past.leak_remains and index == 0:
        held += world.past.leaked_gib * GIB
    reserved = 300 * MIB
    return {
        "total_bytes": card.bytes,
        "reserved_bytes": reserved,
        "free_bytes": max(int(card.bytes - reserved - held), 40 * MIB),
    }


def server_bytes(world: World, index: int) -> int:
    """Memory that the engine holds on one GPU: weights, cache, buffers and the driver's context."""
    used = len(world.used_cards)
    if index >= used or world.placement.gpu_ratio + world.placement.kv_gpu_ratio <= 0:
        return 0
    card, place = world.cards[index], world.placement
    if world.engine.is_torch:
        return int(card.bytes * world.engine.memory_ratio * 0.985)
    weights = world.placed_bytes * place.held_gpu_ratio
    cache = world.reserved_kv_bytes * place.kv_gpu_ratio
    held = (weights + cache) / used + buffer_bytes(world)
    room = card.bytes - 300 * MIB - 160 * MIB - world.others.gpu_gib * GIB * (index == 0)
    return int(min(held, max(room - 60 * MIB, 0)) if place.spill_gib else held)


def buffer_bytes(world: World) -> float:
    """Compute buffers and CUDA context on each GPU; without flash attention they grow."""
    longer = world.engine.context / 8192 if world.engine.flash_attention == "off" else 0.0
    return (0.45 + 0.3 * longer) * GIB + world.model.hidden * 90_000


def _processes(world: World, card: Card, index: int, at_s: float) -> tuple[GpuProcess, ...] | None:
    system, sight = world.host.system, world.sight
    if system == "wsl2":
        return None
    visible = system != "windows"
    held = server_bytes(world, index)
    others = world.others
    share = others.gpu_share.at(at_s)
    known = not sight.private_pids and at_s >= sight.server_from_s
    found = []
    if held:
        busy = max(0.0, 1 - share) * 0.9
        spilled = int(world.placement.spill_gib * GIB)
        found.append(
            GpuProcess(
                pid=SERVER_PID,
                name=None if sight.private_pids else _server_name(world),
                memory_bytes=held if visible else None,
                host_memory_bytes=spilled if card.vendor == "amd" or system == "windows" else None,
                is_server=True if known else None,
                busy_ratio=round(busy, 2) if visible else None,
            )
        )
    if index == 0 and (others.gpu_gib or others.gpu_share.value):
        found.append(
            GpuProcess(
                pid=2222,
                name=others.gpu_name if others.gpu_named and not sight.private_pids else None,
                memory_bytes=int(others.gpu_gib * GIB) if visible else None,
                is_server=False if known else None,
                busy_ratio=round(share, 2) if visible else None,
            )
        )
    if index == 0 and not card.datacenter:
        desktop = GpuProcess(
            pid=900, name="Xorg", memory_bytes=150 * MIB if visible else None, busy_ratio=0.02
        )
        found.append(desktop)
    return tuple(found)


def _server_name(world: World) -> str:
    return SERVER_NAMES[world.engine.kind]


def _seldom(world: World, card: Card, state: State, dice: Random) -> dict[str, Any]:
    idle = state.pstate >= 8
    junction = state.temperature_c + (14 if world.clocks.memory_heat else 8)
    limit = None if card.laptop and dice.random() < 0.5 else round(state.limit_w, 1)
    values: dict[str, Any] = {
        "power_limit_w": limit,
        "energy_j": round(state.energy_j, 1),
        "pcie_generation": 1 if idle or card.unified else world.link.generation or card.generation,
        "pcie_width": 1 if card.unified else world.link.width or card.width,
        "dram_busy_ratio": round(state.dram, 3),
        "memory_temperature_c": round(junction),
        "power_source": world.clocks.source,
        "vgpu_licensed": world.health.licensed,
    }
    if card.vendor == "nvidia":
        values |= {
            "throttled_power_ns": int(state.power_ns),
            "throttled_sw_thermal_ns": int(state.sw_heat_ns),
            "throttled_hw_thermal_ns": int(state.hw_heat_ns),
            "throttled_power_brake_ns": int(state.brake_ns),
        }
    return values


def _faults(world: World, index: int, at_s: float) -> dict[str, Any]:
    health, mine = world.health, index == 0
    reported = mine and health.xid is not None and at_s >= health.xid_at_s
    return {
        "xids": int(reported),
        "xid": health.xid if reported else None,
        "ecc_errors": 2 + (health.ecc_errors if mine and at_s >= health.xid_at_s else 0),
        "remapped_rows": health.remapped if mine and at_s >= health.xid_at_s else 0,
        "pcie_replays": 3 + int(world.link.replays * min(max(at_s / 10, 0), 1)),
    }


def host_samples(world: World, trace: Trace, sent_at_s: float, dice: Random) -> list[HostSample]:
    """Return the samples of the host and of the engine's processes."""
    if not world.sight.host_samples or world.waits.remote:
        return []
    times = [state.at_s for state in trace.host]
    samples, at_s = [], dice.uniform(0.05, HOST_S)
    absent = world.sight.hidden
    while at_s <= times[-1] + HOST_S:
        begin = max(bisect_right(times, at_s - HOST_S) - 1, 0)
        states = trace.host[begin : max(bisect_right(times, at_s), begin + 1)]
        if dice.random() >= world.sight.lost_samples:
            values = {k: v for k, v in _host(world, states, dice).items() if k not in absent}
            if at_s < world.sight.server_from_s:
                values = {k: v for k, v in values.items() if not k.startswith("server_")}
            samples.append(made(HostSample, at_s=sent_at_s + at_s, span_s=HOST_S, **values))
        at_s += HOST_S
    return samples


def _host(world: World, states: list[Any], dice: Random) -> dict[str, Any]:
    host, others = world.host, world.others

    def mean(name: str) -> float:
        return sum(float(getattr(state, name)) for state in states) / len(states)

    server = max(mean("server_cores") * dice.gauss(1, 0.03), 0.0)
    quota = world.work.quota
    busy_others = min(max(mean("others") + dice.uniform(0.05, 0.5), 0), host.logical)
    steal = others.steal * host.logical
    starved = mean("starved")
    disk = mean("disk_bytes_per_s")
    stalled = mean("io_stalled")
    on_cpu = world.model.file_bytes(world.quantisation) * (1 - world.placement.held_gpu_ratio)
    mapped = on_cpu if world.engine.memory_mapped else 0.0
    resident = min(mapped, host.ram_gib * GIB * 0.85)
    spill = world.placement.spill_gib * GIB
    taken = resident + (on_cpu - mapped) + spill + 5 * GIB
    return {
        "cpu_cores": host.logical,
        "cpu_busy_cores": min(server + busy_others + steal, host.logical),
        "cpu_steal_cores": round(steal * dice.gauss(1, 0.1), 3) if steal else 0.0,
        "busiest_core_ratio": round(min(max(server, 0.2), 1.0), 2),
        "cpu_mhz": 4200.0 * world.work.cpu_clock,
        "available_bytes": int(max(host.ram_gib * GIB - taken, 0.3 * GIB)),
        "swap_in_bytes_per_s": 0.0,
        "psi_cpu_some_ratio": round(min(0.01 + starved * 0.4, 1.0), 3),
        "psi_io_full_ratio": round(min(stalled * 0.9, 1.0), 3),
        "psi_memory_full_ratio": round(stalled * 0.4, 3) if disk else 0.0,
        "server_cpu_cores": server,
        **_tree(world, server),
        "server_busy_threads": max(round(mean("threads")), 0),
        "server_threads": world.engine.threads + 12,
        "server_run_delay_cores": round(0.004 + starved * dice.gauss(1, 0.1), 4),
        "server_anon_bytes": int(0.9 * GIB + on_cpu - mapped + spill),
        "server_file_bytes": int(0.3 * GIB + resident),
        "server_major_faults_per_s": disk / 4096 / 16 if world.engine.memory_mapped else 0.0,
        "server_read_bytes_per_s": disk * dice.gauss(1, 0.05),
        "server_allowed_cores": host.logical,
        "server_quota_cores": quota,
        "server_throttled_ratio": _throttled(states) if quota else 0.0,
        "server_throttled_s_per_s": mean("throttled") if quota else 0.0,
    }


def _tree(world: World, server: float) -> dict[str, Any]:
    """How the CPU time is spread over the engine's processes.

    Engines in Python have one that listens, one that schedules and one for each GPU, the last of
    which spin while they wait for each other (vLLM V1); the others do all in one.
    """
    if not world.engine.is_torch:
        children = world.engine.kind == "ollama"
        return {
            "server_busiest_process_cores": server,
            "server_main_process_cores": 0.02 if children else server,
            "server_processes": 2 if children else 1,
        }
    workers = world.engine.tensor_parallel if world.engine.tensor_parallel > 1 else 0
    return {
        "server_busiest_process_cores": min(server, 1.0 if not workers else 1.05),
        "server_main_process_cores": min(0.1 * server, 0.3),
        "server_processes": 2 + workers,
    }


def _throttled(states: list[Any]) -> float:
    """Share of the scheduler's periods in which the quota ran out."""
    worst = max(float(state.throttled) for state in states)
    return round(1 - float(0.5 ** (worst * 4)), 2)
