"""The rate of a configuration: split between GPU and RAM, KV cache in RAM, share of a batch.

The reference of the verdict leaves all of this out, so that none of it ever looks normal.

Sources: a split between GPU and RAM, 15 published rows, lies at 0.71-1.37 of the harmonic mix with
RAM read at 0.60 of its bandwidth; layers on several like cards give 0.91-1.0 of one card.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.case.case import Range
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.memory import CPU_KV_RATIO, Memory, is_tensor_parallel
from slowtok.detectors.expectation.reads import Reads, expert_bytes

SPLIT_RAM_EFFICIENCY = 0.60
SPLIT_LOW_RATIO, SPLIT_HIGH_RATIO = 0.71, 1.37
LAYER_SPLIT_RATIO = 0.91
USABLE_VRAM_RATIO = 0.92  # the rest goes to buffers and the driver; heuristic


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """What one request should get as things are; the ceiling is that of all memories together."""

    band: Range
    expected_tps: float
    ceiling_tps: float


def configured(
    memory: Memory,
    reads: Reads,
    model: ModelFacts,
    device: DeviceFacts,
    server: ServerFacts,
    *,
    gpus: Sequence[GpuFacts],
    sequences: float,
) -> Configured | None:
    """Return what one request should get as things are; None where that is the reference itself."""
    batch = max(sequences, 1.0)
    if memory.is_gpu:
        layers = layers_ratio(reads, model, server, gpus)
        on_gpu = gpu_ratio(reads, model, server, gpus)
        kv_on_gpu = layers if server.kv_on_gpu is not False else 0.0
        if on_gpu < 1.0 or kv_on_gpu < 1.0:
            return _mixed(memory, reads, device, on_gpu, kv_on_gpu, batch)
    if batch == 1.0:
        return _several(memory, reads, server, len(gpus))
    return _batch(memory, reads, model, batch)


def gpu_ratio(
    reads: Reads, model: ModelFacts, server: ServerFacts, gpus: Sequence[GpuFacts]
) -> float:
    """Return the share of the weights read per token that lies on GPUs.

    That of the layers, less the experts that the engine was told to keep in RAM.
    """
    ratio = layers_ratio(reads, model, server, gpus)
    if server.cpu_moe_layers and server.loaded_gpu_bytes is None:
        kept_ratio = min(server.cpu_moe_layers / reads.layers, 1.0)
        ratio = min(ratio, 1.0 - kept_ratio * expert_bytes(model) / reads.weights)
    return ratio


def layers_ratio(
    reads: Reads, model: ModelFacts, server: ServerFacts, gpus: Sequence[GpuFacts]
) -> float:
    """Return the share of the layers on GPUs, whose KV cache lies there too.

    By the engine's word on its memory, else by its layers, else by what fits.
    """
    if server.loaded_bytes and server.loaded_gpu_bytes is not None:
        return min(server.loaded_gpu_bytes / server.loaded_bytes, 1.0)
    if server.gpu_layers is not None and 0 <= server.gpu_layers < reads.layers:
        return server.gpu_layers / (reads.layers + 1)  # the output layer counts as one
    if server.gpu_layers is None or server.gpu_layers < 0:
        return 1.0 if server.cpu_moe_layers else _fitting_ratio(reads, model, gpus)
    return 1.0


def _fitting_ratio(reads: Reads, model: ModelFacts, gpus: Sequence[GpuFacts]) -> float:
    totals = [gpu.total_bytes for gpu in gpus if gpu.total_bytes]
    if not model.file_bytes or len(totals) < len(gpus) or not totals:
        return 1.0
    usable = sum(totals) * USABLE_VRAM_RATIO
    if model.file_bytes + reads.kv <= sum(totals):
        return 1.0
    return max(min(usable / (model.file_bytes + reads.kv), 1.0), 0.0)


def _mixed(
    memory: Memory,
    reads: Reads,
    device: DeviceFacts,
    on_gpu: float,
    kv_on_gpu: float,
    batch: float,
) -> Configured | None:
    peak = device.ram_bandwidth_bytes_per_s
    if not peak:
        return None
    kv = reads.kv * batch
    gpu_s = memory.token_s(on_gpu * reads.weights, kv_on_gpu * kv, on_gpu * reads.layers)
    ram_weights, ram_kv = (1 - on_gpu) * reads.weights, (1 - kv_on_gpu) * kv
    mixed_s = gpu_s + (ram_weights + ram_kv / CPU_KV_RATIO) / (SPLIT_RAM_EFFICIENCY * peak)
    gpu_bytes = on_gpu * reads.weights + kv_on_gpu * kv
    least_s = gpu_bytes / memory.peak_bytes_per_s + (ram_weights + ram_kv) / peak
    low, high = SPLIT_LOW_RATIO / mixed_s / batch, min(SPLIT_HIGH_RATIO / mixed_s, 1 / least_s)
    return Configured(
        band=Range(low=low, high=high), expected_tps=1 / mixed_s, ceiling_tps=1 / least_s
    )


def _several(memory: Memory, reads: Reads, server: ServerFacts, count: int) -> Configured | None:
    """Layers spread over several GPUs: a little less than one of them alone."""
    if count <= 1 or is_tensor_parallel(server):
        return None
    alone = memory.band(reads)
    return Configured(
        band=Range(low=LAYER_SPLIT_RATIO * alone.low, high=alone.high),
        expected_tps=(LAYER_SPLIT_RATIO + 1) / 2 * memory.expected_tps(reads),
        ceiling_tps=memory.peak_bytes_per_s / reads.total,
    )


def _batch(memory: Memory, reads: Reads, model: ModelFacts, batch: float) -> Configured:
    """Sequences of a batch share the weights, and each may choose other experts, up to all.

    On a CPU they share the cores too: at worst the batch costs as much as one after the other.
    """
    most = reads.weights * batch if reads.is_moe else reads.weights
    kv = reads.kv * batch
    slowest_s = memory.token_s(min(most, model.file_bytes or most), kv, reads.layers)
    low = memory.low_ratio / slowest_s / (1.0 if memory.is_gpu else batch)
    ceiling = memory.peak_bytes_per_s / (reads.weights + kv)
    return Configured(
        band=Range(low=low, high=memory.high_ratio * ceiling),
        expected_tps=memory.middle_ratio / memory.token_s(reads.weights, kv, reads.layers),
        ceiling_tps=ceiling,
    )
