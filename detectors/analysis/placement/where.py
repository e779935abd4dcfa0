"""The placement of a model: how much of what each token reads is not on a GPU.

Strategy: what the engine says of itself is believed first, then its command line, then the memory
that its processes hold, then what cannot be otherwise: more than the GPUs have. An engine that says
"all on the GPU" while the memory shows otherwise is wrong (ollama/ollama#8623). What the split
costs is in `placement.cost`, why it is so in `placement.reasons`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu
from slowtok.detectors.analysis.gpu.vram import VramSplit, newest_split
from slowtok.detectors.analysis.host_window import (
    CPU_DECODES_CORES,
    mean,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import WHOLE_ON_GPU, ModelFacts, ServerFacts
from slowtok.detectors.case.finding import Missing, need
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.expectation.footprint import (
    Footprint,
    embedding_bytes,
    footprint,
    macos_gpu_bytes,
)
from slowtok.detectors.expectation.reads import every_expert_bytes, expert_bytes

PlacementSource = Literal["engine", "command line", "memory", "size"]

MIN_CPU_RATIO = 0.02
"""Heuristic: less than a fiftieth beside the GPU is rounding, and costs nothing."""

NOTHING_RATIO = 1 - MIN_CPU_RATIO
"""At this share on the CPU and more, nothing of the model counts as on a GPU."""

MAX_CONTEXT_RATIO = 0.05
"""Heuristic: a CUDA context without weights, as a share of the model file."""

MEMORY_SLACK_RATIO = 0.95
"""The memory that a process holds says "not all of it" only below this share of what it needs."""

UNIFIED_ROOM_RATIO = 0.75
"""What a GPU that is no Mac's may have of the machine's memory. Heuristic: as of a larger Mac's."""

TOLD: Collection[PlacementSource] = ("engine", "command line")
"""Sources that say what was done, instead of what can be seen of it."""


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
    source: PlacementSource
    vram: VramSplit | None
    need: Footprint | None
    over_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacementBeside:
    """What one source says of the part that is not on a GPU."""

    source: PlacementSource
    weights_ratio: float
    kv_ratio: float
    missing_bytes: float | None = None
    over_link: bool = False


@cached_for_last_case
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


@cached_for_last_case
def placement(case: Case) -> Placement:
    """Return where the model lies.

    Raises:
        Missing: neither the engine, nor its command line, nor the GPUs' memory tell.
    """
    count = max(len(serving_gpus(case)), 1)
    held, size = vram_held(case), footprint(case.model, case.server, gpus=count)
    told = _by_engine(case, size) or _by_command_line(case, size)
    seen = _by_memory(case, held, size) or _by_size(case, held, size)
    if told is None or (_is_nothing(told) and seen is not None):
        told = seen
    if told is None and size is None and held is not None and held.server_bytes is not None:
        raise Missing("size of the model file")
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


@cached_for_last_case
def serving_gpus(case: Case) -> tuple[GpuFacts, ...]:
    """Return the GPUs that may serve: those in use, or all; of a GPU in slices only the slices."""
    gpus, mine = case.device.gpus or (), case.server.gpu_indices
    sliced = {gpu.partition_of for gpu in gpus}
    whole = tuple(g for g in gpus if g.uuid is None or g.uuid not in sliced)
    return tuple(g for g in whole if not mine or g.index in mine)


@cached_for_last_case
def vram_held(case: Case) -> VramSplit | None:
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


def shares_memory(case: Case) -> bool:
    """Return True if the GPUs that may serve use the machine's memory."""
    gpus = serving_gpus(case)
    return bool(gpus) and all(gpu.unified_memory for gpu in gpus)


def room_bytes(case: Case, held: VramSplit | None) -> float | None:
    """Return what the GPUs could hold if they were empty."""
    if held is not None:
        return held.usable_bytes
    gpus = serving_gpus(case)
    if shares_memory(case):
        ram_bytes = case.device.ram_bytes
        if ram_bytes is None:
            return None
        is_mac = all(gpu.vendor == "apple" for gpu in gpus)
        return macos_gpu_bytes(ram_bytes) if is_mac else UNIFIED_ROOM_RATIO * ram_bytes
    totals = [gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    return sum(totals) if gpus and len(totals) == len(gpus) else None


def holds_some(case: Case) -> bool:
    """Return True if the server holds memory on a GPU that may be a part of the model.

    Raises:
        Missing: the driver does not say, and nothing else does.
    """
    held = vram_held(case)
    samples = case.gpu_during("decode")
    listed = [p for s in samples if s.processes is not None for p in s.processes]
    mine = [p.memory_bytes for p in listed if p.is_server]
    if not mine:
        is_listed = any(s.processes is not None for s in samples)
        unsure = any(p.is_server is None for p in listed)
        if is_listed and not unsure and (held is None or held.server_bytes is not None):
            return False
        return _may_hold(case, held, "processes on the GPU")
    known = [memory_bytes for memory_bytes in mine if memory_bytes is not None]
    if len(known) < len(mine):
        return _may_hold(case, held, "GPU memory of the server")
    return max(known) >= MAX_CONTEXT_RATIO * need(case.model.file_bytes, "size of the model file")


def _may_hold(case: Case, held: VramSplit | None, fact: str) -> bool:
    """Decide where the driver hides whose the memory is; raises Missing of `fact` if nothing does.

    The engine's word counts only where it speaks of a part, its "all of it" does not.
    """
    server, file_bytes = case.server, case.model.file_bytes
    if 0 < (server.loaded_gpu_bytes or 0) < (1 - MIN_CPU_RATIO) * (server.loaded_bytes or 0):
        return True
    if held is not None and file_bytes is not None:
        others = sum(other.memory_bytes or 0 for other in held.others)
        if held.usable_bytes - held.free_bytes - others < MAX_CONTEXT_RATIO * file_bytes:
            return False
    if shares_memory(case):
        return False
    raise Missing(fact)


@cached_for_last_case
def server_cores(case: Case) -> float | None:
    """Return how many cores the server's threads kept busy in decode."""
    return mean(case.host_during("decode"), lambda s: s.server_cpu_cores)


def _by_engine(case: Case, size: Footprint | None) -> _PlacementBeside | None:
    """Ollama: what it counts includes the embedding table where not all layers are on the GPU."""
    server = case.server
    if not server.loaded_bytes or server.loaded_gpu_bytes is None:
        return None
    unread = embedding_bytes(case.model) if size is not None else 0
    beside = max(server.loaded_bytes - server.loaded_gpu_bytes - unread, 0)
    ratio = min(beside / max(server.loaded_bytes - unread, 1), 1.0)
    return _PlacementBeside(
        source="engine", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=float(beside)
    )


def _by_command_line(case: Case, size: Footprint | None) -> _PlacementBeside | None:
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
    return _PlacementBeside(
        source="command line",
        weights_ratio=max(layers or 0.0, experts),
        kv_ratio=kv,
        missing_bytes=missing,
    )


def _by_offload(case: Case, size: Footprint | None) -> _PlacementBeside:
    """Return what vLLM was told to keep in RAM, for each GPU; the rest it puts on them."""
    kept = (case.server.cpu_offload_bytes or 0) * max(case.server.tensor_parallel or 1, 1)
    ratio = min(kept / size.weights_bytes, 1.0) if size is not None else 0.0
    return _PlacementBeside(
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
    if not (server.cpu_moe_layers and model.layers):
        return 0.0
    return every_expert_bytes(model) * min(server.cpu_moe_layers / model.layers, 1.0)


def _by_memory(
    case: Case, held: VramSplit | None, size: Footprint | None
) -> _PlacementBeside | None:
    if held is None or held.server_bytes is None or size is None or case.device.private_pids:
        return None
    if case.server.kind in WHOLE_ON_GPU:
        return None
    total = size.placed_bytes - (0 if case.server.kv_on_gpu is not False else size.kv_bytes or 0.0)
    ratio = 0.0
    if held.server_bytes < MEMORY_SLACK_RATIO * total:
        ratio = min(1 - max(held.server_bytes - size.least_overhead_bytes, 0) / total, 1.0)
    return _PlacementBeside(
        source="memory", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=ratio * total
    )


def _by_size(case: Case, held: VramSplit | None, size: Footprint | None) -> _PlacementBeside | None:
    """More than the GPUs have cannot be on them: so much at least is elsewhere."""
    room = room_bytes(case, held)
    if room is None or size is None or case.server.kind in WHOLE_ON_GPU:
        return None
    over = size.least_bytes - room
    if over <= MIN_CPU_RATIO * size.placed_bytes:
        return None
    ratio = min(over / size.placed_bytes, 1.0)
    return _PlacementBeside(source="size", weights_ratio=ratio, kv_ratio=ratio, missing_bytes=over)


def _is_nothing(beside: _PlacementBeside) -> bool:
    return max(beside.weights_ratio, beside.kv_ratio) < MIN_CPU_RATIO


def _read_ratio(case: Case, beside: _PlacementBeside) -> float:
    weights, kv = case.envelope.read_bytes or 0.0, case.envelope.kv_bytes or 0.0
    if not weights + kv:
        return max(beside.weights_ratio, beside.kv_ratio)
    return (beside.weights_ratio * weights + beside.kv_ratio * kv) / (weights + kv)


def _all(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
