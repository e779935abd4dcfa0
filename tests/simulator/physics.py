"""How long things take: bytes over bandwidth in each place, and what stands in the way.

One token reads the active weights and the cache from wherever they lie: GPU memory, RAM over PCIe,
RAM by the CPU, or the disk; each layer costs a launch; the host may keep the GPU waiting.
"""

from dataclasses import dataclass

from simulator.cards import Card
from simulator.geometry import KV_SIZE
from simulator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass of the model: seconds spent in each place, and tokens that come out of it."""

    gpu_s: tuple[float, ...]
    pcie_s: float
    cpu_s: float
    host_s: float
    idle_s: float
    disk_s: float
    sync_s: float
    tokens: float
    traffic_bytes: float
    spilled_bytes: float
    disk_bytes: float
    cpu_cores: float
    starved_cores: float
    throttled_cores: float

    @property
    def total_s(self) -> float:
        """How long the pass takes: cards that share the layers take turns."""
        gpu_s = max(self.gpu_s) if self.sync_s else sum(self.gpu_s)
        waiting = self.host_s + self.idle_s + self.disk_s + self.sync_s
        return gpu_s + self.pcie_s + self.cpu_s + waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """What the CPU gives the engine: its speed as a share of what its memory allows."""

    speed: float
    cores: float
    starved: float
    throttled: float


SLOW_CORE = 0.6
"""What all threads reach where some run on efficiency cores: at each step they wait for those. On
a 12900K 24 threads were "unusable", and 6 to 12 fine (ggml-org/llama.cpp#767; #842, #11247)."""


def decode_pass(world: World, at_s: float, context: float, sm: float, memory: float) -> Pass:
    """One pass at a time of the run; `sm` and `memory` are clocks as shares of the highest."""
    nature, work, place = world.nature, world.work, world.placement
    sequences = 1 + world.others.neighbours.at(at_s)
    weights = world.model.pass_bytes(world.quantisation, sequences)
    kv = _kv_bytes(world, context, sequences)
    spilled = _spilled(world, at_s, weights)
    gpu_weights = max(weights * place.gpu_ratio - spilled, 0.0)
    gpu_kv = kv * place.kv_gpu_ratio
    cpu_bytes = weights * (1 - place.gpu_ratio) + kv * (1 - place.kv_gpu_ratio)
    disk_bytes = weights * place.disk_ratio
    gpu_s, sync_s = _gpu_time(world, gpu_weights, gpu_kv, sm, memory, at_s)
    cpu = cpu_power(world, at_s)
    cpu_s = cpu_bytes / (world.host.ram_gb_s * 1e9 * nature.ram_ratio * cpu.speed) * work.ram_drag
    drafts = work.drafted * work.draft_cost * (sum(gpu_s) + cpu_s)
    slow_host = work.host_gap_s * sequences / max(min(cpu.speed, 1.0), 0.05)
    return Pass(
        gpu_s=tuple(each * (1 + work.drafted * work.draft_cost) for each in gpu_s),
        pcie_s=spilled / (world.pcie_bytes_per_s * 0.8),
        cpu_s=cpu_s + (drafts if not gpu_s else 0.0) + _launch_delay(world, cpu),
        host_s=slow_host,
        idle_s=work.idle_gap_s,
        disk_s=disk_bytes / (world.host.disk_gb_s * 1e9),
        sync_s=sync_s,
        tokens=1 + _accepted(work.drafted, work.acceptance),
        traffic_bytes=gpu_weights + gpu_kv,
        spilled_bytes=spilled,
        disk_bytes=disk_bytes,
        cpu_cores=cpu.cores,
        starved_cores=cpu.starved,
        throttled_cores=cpu.throttled,
    )


def prefill_s(world: World, tokens: int, sm: float, at_s: float) -> float:
    """Seconds to compute `tokens` of the prompt on top of those that are cached."""
    model, cards = world.model, world.used_cards
    if tokens <= 0:
        return 0.002
    depth = world.request.cached + tokens / 2
    attention = 2 * model.layers * model.hidden * depth
    flops = 2 * (model.read_parameters * 1e9 + attention) * tokens
    share = world.placement.gpu_ratio if cards else 0.0
    spilled = _spilled(world, at_s, model.pass_bytes(world.quantisation))
    ratio = world.nature.prefill_ratio * (0.28 if model.experts else 1.0)
    gpu_flops = sum(card.tflops for card in cards[:1]) * 1e12 * ratio * min(sm * 1.1, 1.0)
    foreign = 1 - world.others.gpu_share.at(at_s)
    seconds = 0.0
    if gpu_flops:
        drag = world.work.prefill * world.health.drag.at(at_s) * foreign
        weights = model.file_bytes(world.quantisation)
        batches = -(-tokens // 512)
        streamed = weights * (1 - share) * batches / (world.pcie_bytes_per_s * 0.8)
        flow = spilled * batches / (world.pcie_bytes_per_s * 0.8)
        seconds = flops / gpu_flops / drag + min(streamed, flops * (1 - share) / 6e11) + flow
    else:
        cpu = cpu_power(world, at_s)
        seconds = flops / (world.host.physical * 6e10 * cpu.speed * world.work.prefill)
    one_pass = decode_pass(world, at_s, depth, sm, 1.0)
    return max(seconds, one_pass.total_s) + one_pass.disk_s


def cpu_power(world: World, at_s: float) -> Cpu:
    """What the scheduler gives the engine's threads, which wait for each other at every step.

    The exponents are of a llama-server on two cores: half of the time lost to others made it 7
    times slower, half lost to a quota 3 times, and four threads for each core 4 times.
    """
    host, work = world.host, world.work
    on_cpu = world.placement.gpu_ratio < 1 or world.placement.kv_gpu_ratio < 1
    threads = float(world.engine.threads) if on_cpu or not world.cards else 1.0
    wanted = min(threads, host.logical)
    demand = world.others.cores.at(at_s) + world.others.steal * host.logical
    free = max(host.logical - demand, host.logical * threads / (threads + demand + 1e-9))
    cores = min(wanted, free)
    # few cores reach what the memory gives; slower ones have to be more
    speed = min(1.0, min(threads, host.physical) * work.cpu_clock / min(host.physical, 5))
    if threads > host.fast_cores:
        speed *= SLOW_CORE if host.slow_cores else 1.0
    if threads == 1 and world.cards:
        speed = 1.0
    speed *= (cores / wanted) ** 2.3
    speed /= (threads / wanted) * max(wanted / host.physical, 1.0) ** 0.3
    throttled = 0.0
    if work.quota is not None and work.quota < cores:
        throttled = (
            cores - work.quota
        )  # seconds that threads wait, each second, for the next period
        speed *= (work.quota / cores) ** 1.4
        cores = work.quota
    starved = max(threads - free, 0.0) + (demand / host.logical) * 0.02 + throttled
    return Cpu(
        speed=max(speed, 0.004),
        cores=cores,
        starved=starved,
        throttled=throttled,
    )


def _kv_bytes(world: World, context: float, sequences: float) -> float:
    own = world.model.context_bytes(context, world.engine.kv_type)
    around = world.model.context_bytes(world.others.neighbour_context, world.engine.kv_type)
    slope = world.work.kv_slope
    return (own * slope + around * (sequences - 1)) / KV_SIZE["f16"]


def _spilled(world: World, at_s: float, weights: float) -> float:
    """Bytes of a pass that come over PCIe: the spilled share of what is held is read each time."""
    place = world.placement
    if at_s < place.spill_from_s or not place.spill_gib:
        return 0.0
    held = world.model.file_bytes(world.quantisation) + world.reserved_kv_bytes
    return min(place.spill_gib * 2**30 / held, 1.0) * weights


def _gpu_time(
    world: World, weights: float, kv: float, sm: float, memory: float, at_s: float
) -> tuple[tuple[float, ...], float]:
    """Seconds of each card, and of their talk where they compute each layer together."""
    cards = world.used_cards
    if not cards or weights + kv <= 0:
        return (), 0.0
    nature, work = world.nature, world.work
    share = 1 - world.others.gpu_share.at(at_s)
    pace = max(1 / max(memory, 0.02), nature.knee / max(sm, 0.02), 1.0)
    drag = work.kernel / max(share, 0.02) / world.health.drag.at(at_s) / world.clocks.hidden_drag
    launches = world.model.layers * nature.layer_s * (1.8 if world.model.experts else 1.0)
    launches = launches * world.placement.gpu_ratio / max(sm, 0.05) ** 0.7
    per_card: list[float] = []
    together = world.engine.computes_together
    for card in cards:
        reads = weights / nature.efficiency + kv / (nature.kv_efficiency * nature.efficiency)
        seconds = reads / len(cards) / (card.bandwidth_gb_s * 1e9) * pace
        part = launches if together else launches / len(cards)
        flops = 2 * world.model.read_parameters * 1e9 * (1 + world.others.neighbours.at(at_s))
        computed = flops / (card.tflops * 1e12 * _batch_ratio(card)) / len(cards) / max(sm, 0.05)
        per_card.append((max(seconds, computed) + part) * drag)
    return tuple(per_card), _talk(world, at_s) if together else 0.0


def _batch_ratio(card: Card) -> float:
    """Share of the peak that a batch computes at; Pascal's is that of its int8, four times more."""
    return 1.0 if card.architecture == "Pascal" else 0.25


def talk_bytes(world: World, at_s: float) -> float:
    """Bytes that cards computing together exchange in a pass: activations, over the host."""
    sequences = 1 + world.others.neighbours.at(at_s)
    return 2 * world.model.layers * world.model.hidden * 4 * 4 * sequences


def _talk(world: World, at_s: float) -> float:
    """Two reductions a layer: a latency each, and the activations over the link."""
    rounds = 2 * world.model.layers
    return rounds * world.nature.sync_s + talk_bytes(world, at_s) / (world.pcie_bytes_per_s * 0.8)


def _launch_delay(world: World, cpu: Cpu) -> float:
    """A GPU engine's one thread that is kept off its core launches late."""
    if not world.cards or cpu.speed >= 1 or world.placement.gpu_ratio <= 0:
        return 0.0
    if world.placement.gpu_ratio < 1 or world.placement.kv_gpu_ratio < 1:
        return 0.0
    return world.model.layers * 12e-6 * (1 / max(cpu.speed, 0.01) - 1)


def _accepted(drafted: int, acceptance: float) -> float:
    return sum(acceptance**n for n in range(1, drafted + 1))
