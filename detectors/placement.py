"""Where a model lies: how much of what each token reads is not on a GPU, and what that costs.

Strategy: what the engine says of itself is believed first, then its command line, then the memory
that its processes hold, then what cannot be otherwise: more than the GPUs have. An engine that says
"all on the GPU" while the memory shows otherwise is wrong (ollama/ollama#8623). Why it is so:
`slowtok.detectors.placement_why`.

Sources: the split's cost is the mix of `slowtok.detectors.envelope_configured`: 15 published rows
lie at 0.71 to 1.37 of it. Attention on a CPU reads its KV cache at 0.09 to 0.74 of the bandwidth,
by kernel (docs/envelope.md).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Case
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.envelope_configured import (
    SPLIT_HIGH_RATIO,
    SPLIT_LOW_RATIO,
    SPLIT_RAM_EFFICIENCY,
)
from slowtok.detectors.envelope_memory import CPU_KV_RATIO, is_tensor_parallel
from slowtok.detectors.envelope_reads import expert_bytes
from slowtok.detectors.finding import Channel, need, weigh
from slowtok.detectors.footprint import (
    LEAST_OVERHEAD_BYTES,
    WHOLE_ON_GPU,
    Footprint,
    embedding_bytes,
    footprint,
)
from slowtok.detectors.gpu_window import by_gpu, median, settled
from slowtok.detectors.machine import GpuFacts, GpuSample
from slowtok.detectors.vram import VramSplit, newest_split
from slowtok.detectors.window import (
    CPU_DECODES_CORES,
    GPU_DECODES_CORES,
    decode_s,
    decode_tps,
    mean,
)

Source = Literal["engine", "command line", "memory", "size"]

MIN_CPU_RATIO = 0.02
"""No published source: less than a fiftieth beside the GPU is rounding, and costs nothing."""

NOTHING_RATIO = 0.98
"""From here on nothing of the model is on a GPU. No published source: the same, seen from above."""

MEMORY_SLACK_RATIO = 0.95
"""The memory that a process holds says "not all of it" only below this share of what it needs."""

UNIFIED_ROOM_RATIO = 0.75
"""What macOS lets a GPU have of the machine's memory on larger Macs (two thirds on smaller ones)."""

TYPICAL_RAM_BYTES_PER_S = 50e9
"""Two channels of DDR4-3200 give 51 GB/s; used only until this machine's RAM has been measured."""

UNMEASURED_RAM_RATIO = 2.5
"""One slow channel has 20 GB/s, a workstation's four have 100 and more."""

FAST_CPU_KV_RATIO = 0.74 / 0.71
"""The quickest published attention kernel on a CPU, against the rate at which weights are read."""

LINK_BYTES_PER_S = 25e9
"""PCIe 4.0 x16 in practice; used where the link is not known."""

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
LINK_EFFICIENCY = 0.8
"""Raw rates of a PCIe lane, and what copies reach of them; the latter has no published source."""

BUSY_RATIO = 0.90
WAITING_RATIO = 0.60
"""Utilization of a GPU that does not wait for a CPU, and of one that does. Proposed, no published
source; ollama/ollama#3301 shows 15 %, ggml-org/llama.cpp#17880 39 %."""

FETCHING_RATIO = 0.30
IDLING_POWER_RATIO = 0.60
"""A GPU that fetches weights over its link: the share of the link, and of the power limit although
it is busy. Proposed, no published source."""

TOLD: Collection[Source] = ("engine", "command line")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a model is split.

    `weights_ratio` and `kv_ratio` are the shares of the weights and of the KV cache read per token
    that are not on a GPU, `cpu_ratio` that of both together. `missing_bytes` is what would have to
    move there. `over_link` says that the GPU fetches it itself (vLLM), so that no CPU is busy.
    """

    weights_ratio: float
    kv_ratio: float
    cpu_ratio: float
    missing_bytes: float | None
    source: Source
    vram: VramSplit | None
    need: Footprint | None
    over_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beside:
    """What one source says of the part that is not on a GPU."""

    source: Source
    weights_ratio: float
    kv_ratio: float
    missing_bytes: float | None = None
    over_link: bool = False


def off_gpu(case: Case) -> Placement | None:
    """Return the placement where a part that costs time is in RAM although GPUs are there for it.

    None where all of it is on GPUs, or none were to be used.

    Raises:
        Missing: neither the engine, nor its command line, nor the GPUs' memory tell.
    """
    if not case.device.gpus or case.server.gpu_layers == 0 or case.server.local is False:
        return None
    placed = placement(case)
    if placed.cpu_ratio < MIN_CPU_RATIO:
        return None
    # weights in RAM are read by the CPU's threads: where those rest, the sum of memory is wrong
    cores = server_cores(case)
    if placed.source == "memory" and cores is not None and cores <= CPU_DECODES_CORES:
        return None
    return placed


def placement(case: Case) -> Placement:
    """Return where the model lies.

    Raises:
        Missing: neither the engine, nor its command line, nor the GPUs' memory tell.
    """
    held, size = vram(case), footprint(case.model, case.server)
    told = _by_engine(case, size) or _by_command_line(case, size)
    seen = _by_memory(case, held, size) or _by_size(case, held, size)
    if told is None or (_is_nothing(told) and seen is not None):
        told = seen
    beside = need(told, "GPU memory of the server")
    return Placement(
        weights_ratio=beside.weights_ratio,
        kv_ratio=beside.kv_ratio,
        cpu_ratio=_read_ratio(case, beside),
        missing_bytes=beside.missing_bytes,
        source=beside.source,
        vram=held,
        need=size,
        over_link=beside.over_link,
    )


def serving_gpus(case: Case) -> tuple[GpuFacts, ...]:
    """Return the GPUs that may serve: those in use, or all; of a GPU in slices only the slices."""
    gpus, mine = case.device.gpus or (), case.server.gpu_indices
    sliced = {gpu.partition_of for gpu in gpus}
    whole = tuple(g for g in gpus if g.uuid is None or g.uuid not in sliced)
    return tuple(g for g in whole if not mine or g.index in mine)


def vram(case: Case) -> VramSplit | None:
    """Return the memory of all GPUs that may serve, as one; None where one does not tell."""
    mine = {gpu.index for gpu in serving_gpus(case)}
    samples = by_gpu([s for s in case.gpu if s.index in mine])
    splits = [newest_split(found) for found in samples.values()]
    known = [found for found in splits if found is not None]
    if not known or len(known) < len(mine):
        return None
    return VramSplit(
        server_bytes=_all([s.server_bytes for s in known]),
        others=tuple(
            sorted((o for s in known for o in s.others), key=lambda o: -(o.memory_bytes or 0))
        ),
        hidden_bytes=_all([s.hidden_bytes for s in known]),
        free_bytes=sum(s.free_bytes for s in known),
        total_bytes=sum(s.total_bytes for s in known),
        usable_bytes=sum(s.usable_bytes for s in known),
        unassigned_bytes=_all([s.unassigned_bytes for s in known]),
    )


def room_bytes(case: Case, held: VramSplit | None) -> float | None:
    """Return what the GPUs could hold if they were empty."""
    if held is not None:
        return held.usable_bytes
    gpus = serving_gpus(case)
    if gpus and all(gpu.unified_memory for gpu in gpus):
        ram_bytes = case.device.ram_bytes
        return None if ram_bytes is None else UNIFIED_ROOM_RATIO * ram_bytes
    totals = [gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    return sum(totals) if gpus and len(totals) == len(gpus) else None


def lost_s(case: Case, placed: Placement) -> float:
    """Return what the part beside the GPU cost this decode.

    What is known of CPUs gives a range of what a token takes longer; the value in it that is
    nearest to what happened is taken, because where the weights lie is known. As a share of the
    decode, so that a prediction of 60 ms for a token that took 55 is not one of more than all.

    Raises:
        Missing: the bytes of a token, the rate or the one expected of this GPU are not known.
    """
    expected_tps = need(case.envelope.expected_tps, "decode rate expected of this GPU")
    least_s, most_s = longer_per_token_s(case, placed)
    observed_s = 1 / decode_tps(case) - 1 / expected_tps
    longer_s = min(max(observed_s, least_s), most_s)
    return decode_s(case) * longer_s / (longer_s + 1 / expected_tps)


def longer_per_token_s(case: Case, placed: Placement) -> tuple[float, float]:
    """Return how much longer a token takes than wholly on the GPU: at least, and at most.

    Raises:
        Missing: the bytes of a token or the rate expected of this GPU are not known.
    """
    weights = placed.weights_ratio * need(case.envelope.read_bytes, "bytes read per token")
    kv = placed.kv_ratio * (case.envelope.kv_bytes or 0.0)
    whole_s = 1 / need(case.envelope.expected_tps, "decode rate expected of this GPU")
    spared_s = placed.cpu_ratio * whole_s
    rate, spread = _ram_bytes_per_s(case)
    if placed.over_link:
        rate, spread = link_bytes_per_s(case), 1.0
    quick = (weights + kv / FAST_CPU_KV_RATIO) / (rate * spread * SPLIT_HIGH_RATIO)
    slow = (weights + kv / CPU_KV_RATIO) / (rate / spread * SPLIT_LOW_RATIO)
    return max(quick - spared_s, 0.0), max(slow - spared_s, 0.0)


def link_bytes_per_s(case: Case) -> float:
    """Return what the narrowest PCIe link of the GPUs that serve carries in practice."""
    known = [
        LANE_BYTES_PER_S[gpu.max_pcie_generation] * gpu.max_pcie_width * LINK_EFFICIENCY
        for gpu in serving_gpus(case)
        if gpu.max_pcie_generation in LANE_BYTES_PER_S and gpu.max_pcie_width
    ]
    return min(known, default=LINK_BYTES_PER_S)


def gpu_busy_ratio(case: Case) -> float | None:
    """Return how busy decode kept the GPUs, without the stale first second.

    GPUs that work one after the other are busy in turns: together as much as one alone would be.
    """
    medians = [
        median(settled(samples), lambda s: s.busy_ratio)
        for samples in by_gpu(case.gpu_during("decode")).values()
    ]
    known = [value for value in medians if value is not None]
    if not known:
        return None
    return max(known) if is_tensor_parallel(case.server) else min(sum(known), 1.0)


def server_cores(case: Case) -> float | None:
    """Return how many cores the server's threads kept busy in decode."""
    return mean(case.host_during("decode"), lambda s: s.server_cpu_cores)


def is_fetched(case: Case, placed: Placement) -> bool:
    """Say whether the GPU fetches what is missing itself: too much for it, and the CPU rests."""
    cores = server_cores(case)
    return placed.source == "size" and cores is not None and cores <= CPU_DECODES_CORES


def confidence(case: Case, placed: Placement) -> float:
    """Return how sure it is that so much is not on a GPU: who says so, and what CPU and GPU did."""
    if is_fetched(case, placed):
        return weigh("inference", *_spilling(case))
    busy, cores = gpu_busy_ratio(case), server_cores(case)
    channels: list[Channel] = ["server" if placed.source in TOLD else "gauge"]
    if busy is not None and busy < WAITING_RATIO:
        channels.append("gauge")
    if cores is not None and cores > CPU_DECODES_CORES:
        channels.append("gauge")
    rests = cores is not None and cores < GPU_DECODES_CORES and not placed.over_link
    never_waits = busy is not None and busy >= BUSY_RATIO and not placed.over_link
    return weigh(*channels, against=rests + never_waits)


def _spilling(case: Case) -> list[Channel]:
    """Return what shows that a GPU fetches weights: traffic into it, and work that costs little."""
    samples = settled(case.gpu_during("decode"))
    into, power = median(samples, _into_it), median(samples, _power_ratio)
    channels: list[Channel] = []
    if into is not None and into >= FETCHING_RATIO * link_bytes_per_s(case):
        channels.append("gauge")
    if power is not None and power <= IDLING_POWER_RATIO:
        channels.append("gauge")
    return channels


def _into_it(sample: GpuSample) -> float | None:
    return sample.pcie_rx_bytes_per_s


def _power_ratio(sample: GpuSample) -> float | None:
    if sample.power_w is None or not sample.power_limit_w or (sample.busy_ratio or 0) < BUSY_RATIO:
        return None
    return sample.power_w / sample.power_limit_w


def _ram_bytes_per_s(case: Case) -> tuple[float, float]:
    """Return the rate at which a split model is read from RAM, and the factor it may be off by."""
    measured = case.device.ram_bandwidth_bytes_per_s
    if measured:
        return SPLIT_RAM_EFFICIENCY * measured, 1.0
    return SPLIT_RAM_EFFICIENCY * TYPICAL_RAM_BYTES_PER_S, UNMEASURED_RAM_RATIO


def _by_engine(case: Case, size: Footprint | None) -> _Beside | None:
    """Ollama: what it counts includes the embedding table where not all layers are on the GPU."""
    server = case.server
    if not server.loaded_bytes or server.loaded_gpu_bytes is None:
        return None
    unread = embedding_bytes(case.model) if size is not None else 0
    beside = max(server.loaded_bytes - server.loaded_gpu_bytes - unread, 0)
    ratio = min(beside / max(server.loaded_bytes - unread, 1), 1.0)
    return _Beside(
        source="engine", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=float(beside)
    )


def _by_command_line(case: Case, size: Footprint | None) -> _Beside | None:
    server, model = case.server, case.model
    if server.kind in WHOLE_ON_GPU:
        return _by_offload(case, size)
    layers, kv = _layers_ratio(server, model), 0.0
    experts = _experts_on_cpu_ratio(server, model)
    if layers is None and not experts and server.kv_on_gpu is not False:
        return None
    kv = 1.0 if server.kv_on_gpu is False else layers or 0.0
    missing = None
    if size is not None:
        kept = (size.placed_bytes - (size.kv_bytes or 0.0)) * (layers or 0.0)
        missing = max(kept, _experts_on_cpu_bytes(server, model)) + kv * (size.kv_bytes or 0.0)
    return _Beside(
        source="command line",
        weights_ratio=max(layers or 0.0, experts),
        kv_ratio=kv,
        missing_bytes=missing,
    )


def _by_offload(case: Case, size: Footprint | None) -> _Beside:
    """vLLM puts everything on GPUs but what it was told to keep in RAM, for each GPU."""
    kept = (case.server.cpu_offload_bytes or 0) * max(case.server.tensor_parallel or 1, 1)
    ratio = min(kept / size.weights_bytes, 1.0) if size is not None else 0.0
    return _Beside(
        source="command line",
        weights_ratio=ratio,
        kv_ratio=0.0,
        missing_bytes=float(kept),
        over_link=True,
    )


def _layers_ratio(server: ServerFacts, model: ModelFacts) -> float | None:
    """Return the share of the layers that stay in RAM; None where the engine decides."""
    if server.gpu_layers is None or server.gpu_layers < 0 or not model.layers:
        return None
    # the output layer counts as one more, and is the last to go to the GPU
    return max(1 - server.gpu_layers / (model.layers + 1), 0.0)


def _experts_on_cpu_ratio(server: ServerFacts, model: ModelFacts) -> float:
    """Return the share of a token's weights that experts kept on the CPU are."""
    if not (server.cpu_moe_layers and model.layers and model.read_bytes):
        return 0.0
    return expert_bytes(model) / model.read_bytes * min(server.cpu_moe_layers / model.layers, 1.0)


def _experts_on_cpu_bytes(server: ServerFacts, model: ModelFacts) -> float:
    if not (server.cpu_moe_layers and model.layers and model.experts_used):
        return 0.0
    every = expert_bytes(model) * (model.experts or 0) / model.experts_used
    return every * min(server.cpu_moe_layers / model.layers, 1.0)


def _by_memory(case: Case, held: VramSplit | None, size: Footprint | None) -> _Beside | None:
    if held is None or held.server_bytes is None or size is None or case.device.private_pids:
        return None
    if case.server.kind in WHOLE_ON_GPU:
        return None
    total = size.placed_bytes - (0 if case.server.kv_on_gpu is not False else size.kv_bytes or 0.0)
    ratio = 0.0
    if held.server_bytes < MEMORY_SLACK_RATIO * total:
        ratio = min(1 - max(held.server_bytes - LEAST_OVERHEAD_BYTES, 0) / total, 1.0)
    return _Beside(
        source="memory", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=ratio * total
    )


def _by_size(case: Case, held: VramSplit | None, size: Footprint | None) -> _Beside | None:
    """More than the GPUs have cannot be on them: so much at least is elsewhere."""
    room = room_bytes(case, held)
    if room is None or size is None or case.server.kind in WHOLE_ON_GPU:
        return None
    over = size.least_bytes - room
    if over <= MIN_CPU_RATIO * size.placed_bytes:
        return None
    ratio = min(over / size.placed_bytes, 1.0)
    return _Beside(source="size", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=over)


def _is_nothing(beside: _Beside) -> bool:
    return max(beside.weights_ratio, beside.kv_ratio) < MIN_CPU_RATIO


def _read_ratio(case: Case, beside: _Beside) -> float:
    weights, kv = case.envelope.read_bytes or 0.0, case.envelope.kv_bytes or 0.0
    if not weights + kv:
        return max(beside.weights_ratio, beside.kv_ratio)
    return (beside.weights_ratio * weights + beside.kv_ratio * kv) / (weights + kv)


def _all(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
