"""The memory that weights are read from, and how fast decode reads it.

    t = (weights / wide + KV / kv_ratio) / (efficiency x peak) + layers x layer_s

Sources: the GPU constants are fitted (`config/efficiency.toml`, docs/envelope.md); those of the CPU
stand here with theirs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slowtok.config.efficiency import Constants, constants
from slowtok.config.hardware import GpuSpec, find_gpu
from slowtok.detectors.case import Range
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.envelope_reads import NoBasis, Reads
from slowtok.detectors.machine import DeviceFacts, GpuFacts

GPU_HIGH_RATIO = 0.93  # most ever seen without speculation: 0.896 of peak in 1,823 rows
# Engines that the fit does not cover (almost all of its rows are llama.cpp). The few single-stream
# vLLM rows lie at 0.43-0.57 of peak on capped cards: assume 0.60-0.90, and begin the band there.
OTHER_ENGINE_EFFICIENCY = 0.75
OTHER_ENGINE_LOW_RATIO = 0.52  # 0.65 x 0.60 / 0.75
FITTED_ENGINES = frozenset(
    {"llama-server", "ollama", "lm-studio", "llamafile", "exllamav2", "mlx", "unknown"}
)
OLD_BUILD = 4400  # llama.cpp numbers its builds; this one is of the end of 2024
_BUILD = re.compile(r"\bb(\d{3,6})\b")

WIDE_BITS = 7.0  # bits per weight from which a type is plainly unpacked: Q8_0, FP8, 16-bit

# CPU: median share of RAM bandwidth of K-quants over 34 published rows is 0.71, 5th percentile
# 0.40; on the same rows 0.5 x prediction misses one machine (ARM with unequal cores).
CPU_EFFICIENCY = 0.71
CPU_LOW_RATIO = 0.50
CPU_HIGH_RATIO = 0.95
# KV reads on CPU: 0.09-0.74 of bandwidth by attention kernel (Ryzen 7950X). 0.09 is llama.cpp as it
# comes, with flash attention: 0.13 of the 0.71 that weights reach. One virtual machine with 2 cores
# agrees: 125 to 5,250 tokens of SmolLM2-135M, 9.1 to 56 ms per token, are 2.5 GB/s of KV, 0.125 of
# its rate for weights. Other kernels are up to 5 times quicker and lie high in the band.
CPU_KV_RATIO = 0.13
# No published source for these two: measured on one virtual machine with 2 cores (SmolLM2-135M
# Q4_1, RAM read at 50 GB/s: 147 tokens/s measured, 151 predicted).
CPU_CORE_BYTES_PER_S = 10e9
CPU_LAYER_S = 60e-6
# Below 4 bits a CPU is limited by unpacking, not by RAM: 15 published rows lie at 0.24-0.85 of the
# prediction, median 0.34; their nominal size says nothing about which.
CPU_LOW_BIT = 4.0
CPU_LOW_BIT_MIDDLE_RATIO = 0.5
CPU_LOW_BIT_LOW_RATIO = 0.22

MEASURED_RAM = "reference: the whole model in RAM, whose bandwidth was measured on this machine"

# Tensor parallel: each layer waits for the others' results. Gemma-4-12B on 1, 2 and 4 RTX 3090
# without NVLink (vLLM) takes 18.8, 11.4 and 9.5 ms per token: 16 and 62 us a layer on top.
TENSOR_LAYER_S = 20e-6  # for each GPU beyond the first
TENSOR_LOW_RATIO = 0.52  # five published rows: as wide as for engines without a fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that the weights are read from; not `fitted` when nothing like it was measured."""

    label: str
    peak_bytes_per_s: float
    read_bytes_per_s: float
    fitted: bool = True
    kv_ratio: float
    layer_s: float
    low_ratio: float
    middle_ratio: float = 1.0
    high_ratio: float
    is_gpu: bool
    notes: tuple[str, ...] = ()

    @property
    def efficiency_ratio(self) -> float:
        """Return the share of the peak at which weights are read in practice."""
        return self.read_bytes_per_s / self.peak_bytes_per_s

    def token_s(self, weights: float, kv: float, layers: float) -> float:
        """Return the predicted time of one token."""
        return (weights + kv / self.kv_ratio) / self.read_bytes_per_s + layers * self.layer_s

    def expected_tps(self, reads: Reads) -> float:
        """Return the middle estimate."""
        return self.middle_ratio / self.token_s(reads.weights, reads.kv, reads.layers)

    def band(self, reads: Reads) -> Range:
        """Return the rates between which a healthy decode lies."""
        predicted = 1 / self.token_s(reads.weights, reads.kv, reads.layers)
        bound = self.high_ratio * self.peak_bytes_per_s / reads.total
        return Range(low=self.low_ratio * predicted, high=bound)


def reference(
    model: ModelFacts, device: DeviceFacts, server: ServerFacts, gpus: Sequence[GpuFacts]
) -> Memory:
    """Return the memory that the verdict is held against: that of the GPUs that serve, or RAM.

    Raises:
        NoBasis: its bandwidth is not known.
    """
    if not gpus or server.gpu_layers == 0:
        return ram(model, device)
    serving = [vram(gpu, model, server) for gpu in gpus]
    if len(serving) == 1:
        return serving[0]
    # Layers on several cards are read one card after the other, so the slowest is the safe
    # reference; only all of them together bound what tensor parallelism could give.
    slowest = min(serving, key=lambda memory: memory.read_bytes_per_s)
    if is_tensor_parallel(server):
        return _together(slowest, len(serving))
    peaks = [memory.peak_bytes_per_s for memory in serving]
    by_layer = server.split_mode in {"layer", "none"}
    return replace(
        slowest,
        peak_bytes_per_s=max(peaks) if by_layer else sum(peaks),
        fitted=all(memory.fitted for memory in serving),
        notes=(*slowest.notes, f"layers on {len(serving)} GPUs: held to the slowest of them"),
    )


def is_tensor_parallel(server: ServerFacts) -> bool:
    """Say whether every layer is computed on several GPUs at once."""
    return (server.tensor_parallel or 1) > 1 or server.split_mode in {"row", "tensor"}


def vram(gpu: GpuFacts, model: ModelFacts, server: ServerFacts) -> Memory:
    """Return the memory of one GPU.

    Raises:
        NoBasis: its bandwidth is not known, or it is a slice of a GPU.
    """
    if gpu.partition_of or gpu.mig:
        raise NoBasis("a MIG slice: its share of the GPU's bandwidth is not known")
    spec, known = find_gpu(gpu.name), constants()
    peak = gpu.bandwidth_bytes_per_s or (spec and spec.bandwidth_bytes_per_s)
    if not peak:
        raise NoBasis(f"the memory bandwidth of {gpu.name or 'the GPU'} is not known")
    return Memory(
        label=gpu.name or f"GPU {gpu.index}",
        peak_bytes_per_s=peak,
        read_bytes_per_s=peak * _efficiency(spec, known, model, server),
        fitted=spec is not None,
        kv_ratio=known.kv_ratio,
        layer_s=_layer_s(spec, known, model, server),
        low_ratio=_low_ratio(spec, known, server),
        high_ratio=GPU_HIGH_RATIO,
        is_gpu=True,
        notes=_notes(gpu, spec, server),
    )


def is_old_build(version: str | None) -> bool:
    """Say whether a llama.cpp build is of 2024 or before, when each layer took longer."""
    build = build_of(version)
    return build is not None and build < OLD_BUILD


def build_of(version: str | None) -> int | None:
    """Return the number of a llama.cpp build; None where its version does not say."""
    found = _BUILD.search(version or "")
    return None if found is None else int(found[1])


def _efficiency(
    spec: GpuSpec | None, known: Constants, model: ModelFacts, server: ServerFacts
) -> float:
    if spec is None:
        return 1.0
    ratio = spec.decode.efficiency_ratio
    if spec.unified and (model.bits_per_weight or 0.0) > WIDE_BITS:
        ratio *= known.wide_ratio
    if server.kind not in FITTED_ENGINES:
        ratio = min(ratio, OTHER_ENGINE_EFFICIENCY)
    return min(ratio, GPU_HIGH_RATIO)


def _layer_s(
    spec: GpuSpec | None, known: Constants, model: ModelFacts, server: ServerFacts
) -> float:
    maker = spec.maker if spec else "nvidia"
    layer_s = known.layer_s[maker]
    if (model.experts or 0) > 1:
        layer_s += known.moe_layer_s
    if is_old_build(server.version):
        layer_s += known.old_build_layer_s
    if server.kind == "llamafile":
        layer_s += known.llamafile[maker].layer_s
    return layer_s


def _low_ratio(spec: GpuSpec | None, known: Constants, server: ServerFacts) -> float:
    if spec is None:
        return 0.0
    if server.kind == "llamafile":
        return known.llamafile[spec.maker].low_ratio
    if server.kind not in FITTED_ENGINES:
        return OTHER_ENGINE_LOW_RATIO
    return spec.decode.low_ratio


def _notes(gpu: GpuFacts, spec: GpuSpec | None, server: ServerFacts) -> tuple[str, ...]:
    notes = [f"reference: the whole model in the memory of {gpu.name or f'GPU {gpu.index}'}"]
    if spec is None:
        notes.insert(0, f"nothing like {gpu.name} was measured: the ceiling alone is known")
    if server.kind not in FITTED_ENGINES:
        notes.append(f"few published single-stream measurements of {server.kind}: a wide band")
    if gpu.virtual:
        notes.append("a virtual GPU: what other guests take of it is not visible")
    return tuple(notes)


def _together(slowest: Memory, count: int) -> Memory:
    note = f"{count} GPUs work on each layer together: few published measurements, a wide band"
    return replace(
        slowest,
        peak_bytes_per_s=slowest.peak_bytes_per_s * count,
        read_bytes_per_s=slowest.read_bytes_per_s * count,
        layer_s=slowest.layer_s + TENSOR_LAYER_S * (count - 1),
        low_ratio=min(slowest.low_ratio, TENSOR_LOW_RATIO),
        notes=(*slowest.notes, note),
    )


def ram(model: ModelFacts, device: DeviceFacts) -> Memory:
    """Return the machine's RAM, read by its cores.

    Raises:
        NoBasis: its bandwidth was not measured yet.
    """
    peak = device.ram_bandwidth_bytes_per_s
    cores = device.cpu_physical_cores or (device.cpu_logical_cores or 0) // 2
    if not peak or not cores:
        raise NoBasis(
            "the RAM bandwidth is not known yet: it is measured in a second without requests in "
            "which the cores rest"
        )
    notes = [MEASURED_RAM]
    low_bit = model.bits_per_weight is not None and model.bits_per_weight < CPU_LOW_BIT
    if low_bit:
        notes.append("weights under 4 bits: on a CPU limited by unpacking them, hence a wide band")
    return Memory(
        label="RAM",
        peak_bytes_per_s=peak,
        read_bytes_per_s=min(CPU_EFFICIENCY * peak, CPU_CORE_BYTES_PER_S * cores),
        kv_ratio=CPU_KV_RATIO,
        layer_s=CPU_LAYER_S,
        low_ratio=CPU_LOW_BIT_LOW_RATIO if low_bit else CPU_LOW_RATIO,
        middle_ratio=CPU_LOW_BIT_MIDDLE_RATIO if low_bit else 1.0,
        high_ratio=CPU_HIGH_RATIO,
        is_gpu=False,
        notes=tuple(notes),
    )
