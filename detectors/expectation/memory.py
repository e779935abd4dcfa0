"""The memory that weights are read from, and how fast decode reads it.

    t = (weights / wide + KV / kv_ratio) / (efficiency x peak) + layers x layer_s

Sources: the GPU constants are fitted (`config/efficiency.toml`, docs/envelope.md); those of the CPU
stand here with theirs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slowtok.config.efficiency import Constants, constants
from slowtok.config.hardware import GpuSpec, find_gpu, gpu_like
from slowtok.detectors.case.case import Range
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.reads import NoBasis, Reads
from slowtok.detectors.expectation.serving import SERVING_ENGINES, serving

GPU_HIGH_RATIO = 0.93  # most ever seen without speculation: 0.896 of peak in 1,823 rows
# Engines that no fit covers (ik_llama.cpp, exllamav3, MLC, servers of unknown make). The few rows
# of them lie at 0.52 to 1.35 of what llama.cpp's constants give.
OTHER_ENGINE_LOW_RATIO = 0.50
# mlx-vlm, on the same Apple M3 Max and model, reaches 0.38 of the peak where llama.cpp reaches
# 0.79, and reads its cache at 0.01 to 0.21 of the peak. The low edge is heuristic.
MLX_VLM_RATIO = 0.48
MLX_VLM_LOW_RATIO = 0.30
MLX_VLM_KV_RATIO = 0.15
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
# Heuristic: these two: measured on one virtual machine with 2 cores (SmolLM2-135M
# Q4_1, RAM read at 50 GB/s: 147 tokens/s measured, 151 predicted).
CPU_CORE_BYTES_PER_S = 10e9
CPU_LAYER_S = 60e-6
# Below 4 bits a CPU is limited by unpacking, not by RAM: 15 published rows lie at 0.24-0.85 of the
# prediction, median 0.34; their nominal size says nothing about which.
CPU_LOW_BIT = 4.0
CPU_LOW_BIT_MIDDLE_RATIO = 0.5
CPU_LOW_BIT_LOW_RATIO = 0.22

# Nobody said how fast the RAM is: dual-channel DDR4-3200 reads 51 GB/s, DDR5-5600 90; phones and
# old laptops half of it, servers many times as much. 298 published CPU rows of unknown RAM lie at
# 10 to 65 GB/s (median 40) of weights read. Heuristic: the two ratios.
TYPICAL_RAM_BYTES_PER_S = 60e9
TYPICAL_RAM_LOW_RATIO, TYPICAL_RAM_HIGH_RATIO = 0.40, 2.0
MEASURED_RAM_HIGH_RATIO = 2.0
"""Cores that were busy or asleep measure less than the RAM gives: half of it is not rare."""

GIVEN_RAM = "reference: the whole model in RAM, whose bandwidth was given"
MEASURED_RAM = "reference: the whole model in RAM, whose measured read rate is a lower bound"
UNKNOWN_RAM = (
    "the RAM's bandwidth is not known yet, 60 GB/s assumed: a wide band, until it is measured in a "
    "moment without requests, or given (--ram-bandwidth)"
)
NARROWS = "`slowtok bench` or a few requests narrow the band"

# Tensor parallel: each layer waits for the others' results. Gemma-4-12B on 1, 2 and 4 RTX 3090
# without NVLink (vLLM) takes 18.8, 11.4 and 9.5 ms per token: 16 and 62 us a layer on top.
TENSOR_LAYER_S = 20e-6  # for each GPU beyond the first
TENSOR_LOW_RATIO = 0.52  # five published rows: as wide as for engines without a fit
TENSOR_HIGH_RATIO = 1.5  # heuristic


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory that the weights are read from.

    No run can pass `high_ratio` of the peak; none that was published passed `most_ratio` of the
    prediction (None: not known). `is_bound` says that the peak is one: a RAM that was seen to read
    at some rate may read faster.
    """

    label: str
    peak_bytes_per_s: float
    read_bytes_per_s: float
    kv_ratio: float
    layer_s: float
    low_ratio: float
    middle_ratio: float = 1.0
    high_ratio: float
    most_ratio: float | None = None
    is_gpu: bool
    is_bound: bool = True
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
        high = self.high_ratio * self.peak_bytes_per_s / reads.total
        if self.most_ratio is not None:
            high = min(high, self.most_ratio * predicted)
        return Range(low=self.low_ratio * predicted, high=high)


def reference(
    model: ModelFacts, device: DeviceFacts, server: ServerFacts, gpus: Sequence[GpuFacts]
) -> Memory:
    """Return the memory that the verdict is held against: that of the GPUs that serve, or RAM.

    Raises:
        NoBasis: its bandwidth is not known.
    """
    if not gpus or server.gpu_layers == 0:
        return ram(model, device)
    together = is_tensor_parallel(server)
    memories = [vram(gpu, model, server, device, len(gpus) if together else 1) for gpu in gpus]
    if len(memories) == 1:
        return memories[0]
    # Layers on several cards are read one card after the other, so the slowest is the safe
    # reference, up to what it has room for; only all of them together bound what tensor
    # parallelism could give.
    slowest = min(memories, key=lambda memory: memory.read_bytes_per_s)
    if together:
        return _together(slowest, len(memories), server)
    peaks = [memory.peak_bytes_per_s for memory in memories]
    by_layer = server.split_mode in {"layer", "none"}
    read_bytes_per_s = _one_after_the_other(memories, gpus, model)
    held = "held to the slowest of them"
    if read_bytes_per_s > slowest.read_bytes_per_s:
        held += ", with as much of the model as it has room for"
    return replace(
        slowest,
        peak_bytes_per_s=max(peaks) if by_layer else sum(peaks),
        read_bytes_per_s=read_bytes_per_s,
        most_ratio=slowest.most_ratio if by_layer else None,
        notes=(*slowest.notes, f"layers on {len(memories)} GPUs: {held}"),
    )


def _one_after_the_other(
    memories: Sequence[Memory], gpus: Sequence[GpuFacts], model: ModelFacts
) -> float:
    """Return how fast layers are read at least, however they are split: the slowest filled first.

    A token takes the sum of what each card reads over its bandwidth (docs/envelope.md).
    """
    left, time = 1.0, 0.0
    pairs = sorted(zip(memories, gpus, strict=True), key=lambda pair: pair[0].read_bytes_per_s)
    for memory, gpu in pairs:
        room = gpu.total_bytes / model.file_bytes if gpu.total_bytes and model.file_bytes else left
        share = min(room, left)
        left -= share
        time += share / memory.read_bytes_per_s
    return 1 / (time + left / pairs[-1][0].read_bytes_per_s)


def is_tensor_parallel(server: ServerFacts) -> bool:
    """Return True if every layer is computed on several GPUs at once."""
    return (server.tensor_parallel or 1) > 1 or server.split_mode in {"row", "tensor"}


def spec_of(gpu: GpuFacts) -> GpuSpec:
    """Return what is known of a GPU by its name, else by what its driver tells."""
    return find_gpu(gpu.name) or gpu_like(
        gpu.name,
        maker=gpu.vendor,
        architecture=gpu.architecture,
        bus_width_bits=gpu.bus_width_bits,
        unified=gpu.unified_memory,
    )


def vram(
    gpu: GpuFacts, model: ModelFacts, server: ServerFacts, device: DeviceFacts, count: int = 1
) -> Memory:
    """Return the memory of one GPU; `count` of them share each layer.

    Raises:
        NoBasis: its bandwidth is not known.
    """
    spec, known = spec_of(gpu), constants()
    peak, notes = _peak(gpu, spec, device)
    memory = Memory(
        label=gpu.name or f"GPU {gpu.index}",
        peak_bytes_per_s=peak,
        read_bytes_per_s=peak * _efficiency(spec, known, model),
        kv_ratio=known.kv_ratio,
        layer_s=_layer_s(spec, known, model, server),
        low_ratio=spec.decode.low_ratio,
        high_ratio=GPU_HIGH_RATIO,
        most_ratio=spec.decode.high_ratio,
        is_gpu=True,
        notes=(*notes, *_notes(gpu, spec)),
    )
    if notes:  # it is read from a RAM of unknown speed
        low_ratio = memory.low_ratio * TYPICAL_RAM_LOW_RATIO
        memory = replace(memory, low_ratio=low_ratio, most_ratio=None, is_bound=False)
    return _driven_by(server, memory, spec, model, count)


def _peak(gpu: GpuFacts, spec: GpuSpec, device: DeviceFacts) -> tuple[float, tuple[str, ...]]:
    """Return the peak of a GPU's memory, with a note where it is that of the machine's RAM."""
    whole = gpu.name or "the GPU"
    if gpu.mig and not gpu.partition_of:
        raise NoBasis(f"{whole} is cut into slices (MIG), and which one serves is not known")
    named = None if gpu.partition_of else spec.bandwidth_bytes_per_s
    peak = gpu.bandwidth_bytes_per_s or named
    if peak:
        return peak, ()
    if gpu.partition_of:
        raise NoBasis(f"a slice (MIG) of {whole}: its share of the bandwidth is not known")
    if spec.unified:
        note = f"{whole} reads the machine's RAM, whose bandwidth is not known for sure"
        return device.ram_bandwidth_bytes_per_s or TYPICAL_RAM_BYTES_PER_S, (note,)
    raise NoBasis(f"the memory bandwidth of {whole} is not known")


def _driven_by(
    server: ServerFacts, memory: Memory, spec: GpuSpec, model: ModelFacts, count: int
) -> Memory:
    """Return the memory as an engine reads it whose constants are not llama.cpp's."""
    known = constants()
    if server.kind in SERVING_ENGINES:
        own = serving(spec, model, server, count)
        wider = 1.0 if spec.listed else spec.decode.low_ratio
        return replace(
            memory,
            read_bytes_per_s=memory.peak_bytes_per_s * min(own.efficiency_ratio, GPU_HIGH_RATIO),
            kv_ratio=own.kv_ratio,
            layer_s=own.layer_s,
            low_ratio=min(own.low_ratio, wider),
            most_ratio=own.high_ratio,
            notes=(*memory.notes, f"{server.kind} differs by machine and version: {NARROWS}"),
        )
    if server.kind == "llamafile":
        low_ratio = known.llamafile[spec.maker].low_ratio
        return replace(
            memory, low_ratio=low_ratio, most_ratio=known.llamafile[spec.maker].high_ratio
        )
    if server.kind == "mlx-vlm":
        note = f"few published measurements of {server.kind}: a wide band, {NARROWS}"
        return replace(
            memory,
            read_bytes_per_s=memory.read_bytes_per_s * MLX_VLM_RATIO,
            kv_ratio=MLX_VLM_KV_RATIO,
            low_ratio=MLX_VLM_LOW_RATIO,
            most_ratio=None,
            notes=(*memory.notes, note),
        )
    if server.kind not in FITTED_ENGINES:
        note = f"few published single-stream measurements of {server.kind}: a wide band, {NARROWS}"
        low_ratio = min(memory.low_ratio, OTHER_ENGINE_LOW_RATIO)
        notes = (*memory.notes, note)
        return replace(memory, low_ratio=low_ratio, most_ratio=None, notes=notes)
    return memory


def is_old_build(version: str | None) -> bool:
    """Return True if a llama.cpp build is of 2024 or before, when each layer took longer."""
    build = build_of(version)
    return build is not None and build < OLD_BUILD


def build_of(version: str | None) -> int | None:
    """Return the number of a llama.cpp build; None where its version does not say."""
    found = _BUILD.search(version or "")
    return None if found is None else int(found[1])


def _efficiency(spec: GpuSpec, known: Constants, model: ModelFacts) -> float:
    ratio = spec.decode.efficiency_ratio
    if spec.unified and (model.bits_per_weight or 0.0) > WIDE_BITS:
        ratio *= known.wide_ratio
    return min(ratio, GPU_HIGH_RATIO)


def _layer_s(spec: GpuSpec, known: Constants, model: ModelFacts, server: ServerFacts) -> float:
    layer_s = known.layer_s[spec.maker]
    if (model.experts or 0) > 1:
        layer_s += known.moe_layer_s
    if is_old_build(server.version):
        layer_s += known.old_build_layer_s
    if server.kind == "llamafile":
        layer_s += known.llamafile[spec.maker].layer_s
    return layer_s


def _notes(gpu: GpuFacts, spec: GpuSpec) -> tuple[str, ...]:
    notes = [f"reference: the whole model in the memory of {gpu.name or f'GPU {gpu.index}'}"]
    if not spec.listed:
        notes.append(f"{gpu.name or 'this GPU'} is not in the tables: a wide band, {NARROWS}")
    if not gpu.bandwidth_bytes_per_s and spec.bandwidth_bytes_per_s:
        notes.append("the bandwidth of its memory is by its name: the driver did not tell it")
    if gpu.partition_of:
        notes.append("a MIG slice: its share of the bandwidth is that of the memory slices")
    if gpu.virtual:
        notes.append("a virtual GPU: what other guests take of it is not visible")
    return tuple(notes)


def _together(slowest: Memory, count: int, server: ServerFacts) -> Memory:
    whole = replace(
        slowest,
        peak_bytes_per_s=slowest.peak_bytes_per_s * count,
        read_bytes_per_s=slowest.read_bytes_per_s * count,
    )
    if server.kind in SERVING_ENGINES:
        return whole
    note = f"{count} GPUs work on each layer together: few published measurements, a wide band"
    return replace(
        whole,
        layer_s=slowest.layer_s + TENSOR_LAYER_S * (count - 1),
        low_ratio=min(slowest.low_ratio, TENSOR_LOW_RATIO),
        most_ratio=TENSOR_HIGH_RATIO,
        notes=(*slowest.notes, note),
    )


def ram(model: ModelFacts, device: DeviceFacts) -> Memory:
    """Return the machine's RAM, read by its cores: as fast as given, as seen at least, or as usual.

    Only a bandwidth that was given bounds the rate.
    """
    peak, given = device.ram_bandwidth_bytes_per_s, device.ram_bandwidth_source == "given"
    notes, low_ratio, most_ratio = [GIVEN_RAM if given else MEASURED_RAM], 1.0, CPU_HIGH_RATIO
    if not peak:
        peak, notes = TYPICAL_RAM_BYTES_PER_S, [UNKNOWN_RAM]
        low_ratio, most_ratio = TYPICAL_RAM_LOW_RATIO, TYPICAL_RAM_HIGH_RATIO
    elif not given:
        most_ratio = MEASURED_RAM_HIGH_RATIO
    low_bit = model.bits_per_weight is not None and model.bits_per_weight < CPU_LOW_BIT
    if low_bit:
        notes.append("weights under 4 bits: on a CPU limited by unpacking them, hence a wide band")
    cores = device.cpu_physical_cores or (device.cpu_logical_cores or 0) // 2
    by_cores = CPU_CORE_BYTES_PER_S * cores if cores else float("inf")
    return Memory(
        label="RAM",
        peak_bytes_per_s=peak,
        read_bytes_per_s=min(CPU_EFFICIENCY * peak, by_cores),
        kv_ratio=CPU_KV_RATIO,
        layer_s=CPU_LAYER_S,
        low_ratio=low_ratio * (CPU_LOW_BIT_LOW_RATIO if low_bit else CPU_LOW_RATIO),
        middle_ratio=CPU_LOW_BIT_MIDDLE_RATIO if low_bit else 1.0,
        high_ratio=most_ratio,
        is_gpu=False,
        is_bound=given,
        notes=tuple(notes),
    )
