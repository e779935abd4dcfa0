"""Where a model lies: how much of it is not on a GPU, why not, and what that costs.

Strategy: what the engine says of itself is believed first, then its command line, then the memory
that its processes hold. The reason is found by asking in order which change would have put all of
it on the GPUs: an empty card, the context that is really used, the others' memory, an earlier
load's luck.

Sources: the split's cost per token is the harmonic mix of `slowtok.detectors.envelope`, with RAM
read at 0.60 of its bandwidth (15 published measurements lie at 0.71 to 1.37 of it).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Case
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.envelope import SPLIT_RAM_EFFICIENCY
from slowtok.detectors.finding import Missing, need
from slowtok.detectors.footprint import (
    FIT_MARGIN_BYTES,
    LEAST_OVERHEAD_BYTES,
    Footprint,
    footprint,
    reserved_tokens,
)
from slowtok.detectors.gpu_window import by_gpu
from slowtok.detectors.vram import VramSplit, newest_split

Root = Literal[
    "model-too-big", "context-oversized", "vram-held-by-others", "reload-degradation", "told"
]
Source = Literal["engine", "command line", "memory"]

MIN_CPU_RATIO = 0.02
"""No published source: less than a fiftieth beside the GPU is rounding, and costs nothing."""

MEMORY_SLACK_RATIO = 0.95
"""The memory that a process holds says "not all of it" only below this share of the weights."""

TYPICAL_RAM_BYTES_PER_S = 50e9
"""Two channels of DDR4-3200 give 51 GB/s; used only until this machine's RAM has been measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How the model is split. `cpu_ratio` is the share of each token's bytes read from RAM."""

    cpu_ratio: float
    source: Source
    vram: VramSplit | None
    need: Footprint | None


def placement(case: Case) -> Placement:
    """Return where the model lies.

    Raises:
        Missing: neither the engine, nor its command line, nor the GPUs' memory tell.
    """
    if case.server.local is False:
        raise Missing("GPU memory of the server")
    held, size = vram(case), footprint(case.model, case.server)
    told = _by_engine(case.server) or _by_command_line(case)
    seen = _by_memory(case, held, size)
    # an engine that says "all on the GPU" while the memory shows otherwise is wrong (ollama#8623)
    if told is None or (told[0] < MIN_CPU_RATIO and seen is not None):
        told = seen
    ratio, source = need(told, "GPU memory of the server")
    return Placement(cpu_ratio=ratio, source=source, vram=held, need=size)


def vram(case: Case) -> VramSplit | None:
    """Return the memory of all GPUs that may serve, as one; None where one does not tell."""
    mine = case.server.gpu_indices
    samples = tuple(s for s in case.gpu if not mine or s.index in mine)
    splits = [newest_split(found) for found in by_gpu(samples).values()]
    known = [found for found in splits if found is not None]
    if not known or len(known) < len(splits):
        return None
    return VramSplit(
        server_bytes=_sum(s.server_bytes for s in known),
        others=tuple(other for s in known for other in s.others),
        hidden_bytes=_sum(s.hidden_bytes for s in known),
        free_bytes=sum(s.free_bytes for s in known),
        total_bytes=sum(s.total_bytes for s in known),
        usable_bytes=sum(s.usable_bytes for s in known),
        unassigned_bytes=_sum(s.unassigned_bytes for s in known),
    )


def why(case: Case, placed: Placement) -> Root:
    """Return why a part of the model is not on a GPU.

    Raises:
        Missing: the size of the model or of the GPUs' memory is not known.
    """
    size = need(placed.need, "size of the model file")
    memory = need(placed.vram, "memory of the GPU")
    room = memory.usable_bytes
    used = footprint(case.model, case.server, context_tokens=_used_tokens(case)) or size
    if used.least_bytes > room:
        return "model-too-big"
    if size.least_bytes + FIT_MARGIN_BYTES > room and _context_is_larger(case):
        return "context-oversized"
    others = others_at_load_bytes(case, memory)
    if others is not None and size.least_bytes + FIT_MARGIN_BYTES > room - others:
        return "vram-held-by-others"
    if better_load_bytes(case) is not None:
        return "reload-degradation"
    return "told"


def others_at_load_bytes(case: Case, memory: VramSplit) -> int | None:
    """Return what others held when the model was loaded, or else what they hold now."""
    if case.history.loads and case.history.loads[0].others_bytes is not None:
        return case.history.loads[0].others_bytes
    if memory.server_bytes is None:  # what is hidden may be the server's own
        return memory.others_bytes or None
    return _sum((memory.others_bytes, memory.hidden_bytes))


def better_load_bytes(case: Case) -> int | None:
    """Return what an earlier load of the same configuration held on GPUs, if clearly more."""
    if not case.history.loads or case.history.loads[0].server_gpu_bytes is None:
        return None
    now, *before = case.history.loads
    alike = [
        load.server_gpu_bytes
        for load in before
        if load.model == now.model
        and load.context_tokens == now.context_tokens
        and load.server_gpu_bytes is not None
    ]
    best = max(alike, default=None)
    if best is None or (now.server_gpu_bytes or 0) >= MEMORY_SLACK_RATIO * best:
        return None
    return best


def lost_per_token_s(case: Case, cpu_ratio: float) -> float:
    """Return how much longer a token takes with this share of its bytes in RAM.

    Raises:
        Missing: the bytes of a token or the rate expected of this GPU are not known.
    """
    weights = need(case.envelope.read_bytes, "bytes read per token")
    read_bytes = cpu_ratio * (weights + (case.envelope.kv_bytes or 0.0))
    full_s = 1 / need(case.envelope.expected_tps, "decode rate expected of this GPU")
    bandwidth = case.device.ram_bandwidth_bytes_per_s or TYPICAL_RAM_BYTES_PER_S
    return read_bytes / (SPLIT_RAM_EFFICIENCY * bandwidth) - cpu_ratio * full_s


def _by_engine(server: ServerFacts) -> tuple[float, Source] | None:
    if not server.loaded_bytes or server.loaded_gpu_bytes is None:
        return None
    return max(1 - server.loaded_gpu_bytes / server.loaded_bytes, 0.0), "engine"


def _by_command_line(case: Case) -> tuple[float, Source] | None:
    server, model = case.server, case.model
    layers_ratio = 0.0
    if server.gpu_layers is not None and server.gpu_layers >= 0 and model.layers:
        # the output layer counts as one more, and is the last to go to the GPU
        layers_ratio = max(1 - server.gpu_layers / (model.layers + 1), 0.0)
    experts_ratio = _experts_on_cpu_ratio(server, model)
    if server.gpu_layers in (None, -1) and not experts_ratio:
        return None
    return max(layers_ratio, experts_ratio), "command line"


def _experts_on_cpu_ratio(server: ServerFacts, model: ModelFacts) -> float:
    """Return the share of a token's weights that experts kept on the CPU are."""
    if not (server.cpu_moe_layers and model.layers and model.experts and model.experts_used):
        return 0.0
    if not model.file_bytes or not model.read_bytes or model.experts <= model.experts_used:
        return 0.0
    one = (model.file_bytes - model.read_bytes) / (model.experts - model.experts_used)
    share = min(one * model.experts_used / model.read_bytes, 1.0)
    return share * min(server.cpu_moe_layers / model.layers, 1.0)


def _by_memory(
    case: Case, held: VramSplit | None, size: Footprint | None
) -> tuple[float, Source] | None:
    if held is None or held.server_bytes is None or size is None or case.device.private_pids:
        return None
    on_gpu = held.server_bytes - LEAST_OVERHEAD_BYTES
    if held.server_bytes >= MEMORY_SLACK_RATIO * size.weights_bytes:
        return 0.0, "memory"
    total = size.weights_bytes + (size.kv_bytes or 0.0)
    return min(max(1 - on_gpu / total, 0.0), 1.0), "memory"


def _used_tokens(case: Case) -> int | None:
    prompt, completion = case.timeline.tokens.prompt, case.timeline.tokens.completion
    return None if prompt is None else prompt + (completion or 0)


def _context_is_larger(case: Case) -> bool:
    used, reserved = _used_tokens(case), reserved_tokens(case.server)
    return used is not None and reserved is not None and reserved > used


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
