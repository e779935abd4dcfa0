"""What decode should give on this hardware, for this model, at this context: a roofline band.

Strategy: one token needs the active weights and the KV cache read once, from the memory that
serves them, plus a fixed overhead for each layer:

    t = (weights + KV / kv_ratio) / read_rate + layers x layer_s

The band's low edge is an empirical share of 1/t; its high edge and the ceiling are bandwidth
alone, so they are physics. The reference is the model wholly on the GPU that serves it, alone; in
RAM where there is no GPU or the engine was told to use none. What today's split and batch should
give stands beside it as `as_configured`.

Source of the GPU constants: a fit on 583 published single-stream measurements (74
GPUs); the band holds 95.9 % of rows from GPUs and from sources that were left out of the fit.
"""

from dataclasses import dataclass, replace

from slowtok.config.hardware import find_gpu
from slowtok.detectors.case import Baseline, Envelope, Range
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.machine import DeviceFacts, GpuFacts

GPU_LAYER_S = 52e-6  # the fit; builds of 2023-24 need 93e-6
GPU_MOE_LAYER_S = 52e-6  # the fit: routing and smaller kernels, on top of the above
GPU_KV_RATIO = 0.80  # the fit: KV is read slower than weights
GPU_HIGH_RATIO = 0.93  # most ever seen without speculation: 0.896 of peak in 1,823 rows
# Engines that the fit does not cover (almost all of its rows are llama.cpp). The few single-stream
# vLLM rows lie at 0.43-0.57 of peak on capped cards: assume 0.60-0.90, and begin the band there.
OTHER_ENGINE_EFFICIENCY = 0.75
OTHER_ENGINE_LOW_RATIO = 0.52  # 0.65 x 0.60 / 0.75
FITTED_ENGINES = frozenset({"llama-server", "ollama", "lm-studio", "unknown"})

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

# Weights of fewer bits are computing, not reading, on GPUs too: 31 rows, median 0.49.
ONE_BIT = 2.0
ONE_BIT_NAMES = ("IQ1", "TQ", "Q1_", "I2_S")

# A split between GPU and RAM: 15 rows lie at 0.71-1.37 of the harmonic mix with RAM at 0.60.
SPLIT_RAM_EFFICIENCY = 0.60
SPLIT_LOW_RATIO, SPLIT_HIGH_RATIO = 0.71, 1.37

# Bytes against f16, from the block layouts of the types (q8_0: 34 bytes for 32 values).
KV_RATIO = {
    "f32": 2.0, "f16": 1.0, "bf16": 1.0, "auto": 1.0, "q8_0": 0.531, "q5_1": 0.375, "q5_0": 0.344,
    "q4_1": 0.3125, "q4_0": 0.281, "iq4_nl": 0.281, "fp8": 0.5, "fp8_e4m3": 0.5, "fp8_e5m2": 0.5,
}  # fmt: skip

REFINE_AFTER = 5  # healthy requests; no published source
REFINE_HIGH_RATIO = 1.25  # no published source
LEARNED_RATIO = 0.85  # of the setup's own healthy median; no published source
MIN_LEARNED_RATIO = 0.70  # however noisy the setup; no published source
NOISE_RATIO = 0.95  # below what one healthy request in ten gave is noise no more; no source


class _NoBasis(Exception):
    """No band can be stated; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
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

    def token_s(self, weights: float, kv: float, layers: int) -> float:
        return (weights + kv / self.kv_ratio) / self.read_bytes_per_s + layers * self.layer_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """Bytes read for one token of one sequence at `context_tokens`."""

    weights: float
    kv: float
    layers: int
    context_tokens: int


def expect(
    model: ModelFacts,
    device: DeviceFacts,
    server: ServerFacts,
    context_tokens: int | None,
    *,
    gpu_indices: tuple[int, ...] | None = None,
    sequences: float = 1.0,
) -> Envelope:
    """Return the band of decode rates in tokens per second, or the reason why there is none.

    `context_tokens` is the depth that counts: prompt plus half of the answer. `gpu_indices` are
    the GPUs that hold the model (None: not known). `sequences` is the mean number of sequences
    decoded together; it moves `as_configured` only.
    """
    try:
        reads = _reads(model, server, context_tokens)
        memory = _reference(model, device, server, gpu_indices)
    except _NoBasis as reason:
        return Envelope(because=(str(reason),), context_tokens=context_tokens)
    known = Envelope(
        ceiling_tps=memory.peak_bytes_per_s / (reads.weights + reads.kv),
        basis=_basis(memory, reads, None),
        because=(f"nothing like {memory.label} was measured: the ceiling alone is known",),
        context_tokens=context_tokens,
        read_bytes=reads.weights,
        kv_bytes=reads.kv,
    )
    if not memory.fitted:
        return known
    band = _band(memory, reads)
    return replace(
        known,
        decode=band,
        expected_tps=_middle(memory, reads),
        roofline_tps=_middle(memory, reads),
        as_configured=_as_configured(memory, reads, model, device, server, sequences),
        basis=_basis(memory, reads, band),
        because=_notes(memory, model, server),
    )


def refine(envelope: Envelope, baseline: Baseline) -> Envelope:
    """Narrow the band around what this setup gave before, once `REFINE_AFTER` requests are known.

    The low edge only rises (see `learned_low_tps`), the high edge only falls (to 1.25 of the
    baseline), and the ceiling stays. A baseline outside the first-principles band narrows nothing:
    a machine that was always slow must not teach that slow is normal. The first band stays
    visible in `because`.
    """
    band, usual, low = envelope.decode, baseline.decode_tps, learned_low_tps(baseline)
    if band is None or usual is None or low is None:
        return envelope
    first = f"first principles: {band.low:.3g}-{band.high:.3g} tokens/s"
    if not band.low <= usual <= band.high:
        note = f"baseline of {usual:.3g} tokens/s lies outside it and was not used"
        return replace(envelope, because=(*envelope.because, first, note))
    high = usual * REFINE_HIGH_RATIO
    note = f"narrowed to the median of {baseline.count} earlier requests, {usual:.3g} tokens/s"
    return replace(
        envelope,
        decode=Range(low=max(band.low, low), high=min(band.high, high)),
        expected_tps=usual,
        because=(*envelope.because, first, note),
    )


def learned_low_tps(baseline: Baseline) -> float | None:
    """Return the rate below which this setup was never healthy; None until enough was seen.

    0.85 of the median, lower on a setup whose healthy requests spread wider than that.
    """
    median = baseline.decode_tps
    if median is None or baseline.count < REFINE_AFTER:
        return None
    edge = LEARNED_RATIO * median
    if baseline.decode_p10_tps is not None:
        edge = min(edge, NOISE_RATIO * baseline.decode_p10_tps)
    return max(edge, MIN_LEARNED_RATIO * median)


def _reads(model: ModelFacts, server: ServerFacts, context_tokens: int | None) -> _Reads:
    if server.local is False:
        raise _NoBasis("the engine runs on another machine, whose hardware is not visible")
    if server.speculative:
        raise _NoBasis("speculative decoding: one read of the weights gives several tokens")
    if _is_one_bit(model):
        raise _NoBasis("weights of less than 2 bits: decode is limited by computing")
    if model.read_bytes is None or model.layers is None or model.kv_bytes_per_token is None:
        raise _NoBasis("the model's weights, layers or KV bytes are not known")
    if context_tokens is None:
        raise _NoBasis("the context of this request is not known")
    window_tokens = min(context_tokens, model.kv_window_tokens or 0)
    f16_bytes = context_tokens * model.kv_bytes_per_token
    f16_bytes += window_tokens * (model.kv_window_bytes_per_token or 0)
    return _Reads(
        weights=model.read_bytes,
        kv=f16_bytes * (_kv_ratio(server.kv_type_k) + _kv_ratio(server.kv_type_v)) / 2,
        layers=model.layers,
        context_tokens=context_tokens,
    )


def _is_one_bit(model: ModelFacts) -> bool:
    if (model.quantisation or "").upper().startswith(ONE_BIT_NAMES):
        return True
    return model.bits_per_weight is not None and model.bits_per_weight < ONE_BIT


def _kv_ratio(name: str | None) -> float:
    ratio = KV_RATIO.get((name or "f16").lower())
    if ratio is None:
        raise _NoBasis(f"the size of the KV cache type {name} is not known")
    return ratio


def _reference(
    model: ModelFacts, device: DeviceFacts, server: ServerFacts, indices: tuple[int, ...] | None
) -> _Memory:
    gpus = device.gpus or ()
    if not gpus or server.gpu_layers == 0:
        return _ram(model, device)
    serving = [_vram(gpu, model, server) for gpu in gpus if indices is None or gpu.index in indices]
    if not serving:
        raise _NoBasis("the GPU that serves the model is not among those seen")
    # Layers on several cards are read one card after the other, so the slowest is the safe
    # reference; only all of them together bound what tensor parallelism could give.
    slowest = min(serving, key=lambda memory: memory.read_bytes_per_s)
    return replace(
        slowest,
        peak_bytes_per_s=sum(memory.peak_bytes_per_s for memory in serving),
        fitted=all(memory.fitted for memory in serving),
    )


def _vram(gpu: GpuFacts, model: ModelFacts, server: ServerFacts) -> _Memory:
    spec = find_gpu(gpu.name)
    peak = gpu.bandwidth_bytes_per_s or (spec and spec.bandwidth_bytes_per_s)
    if not peak:
        raise _NoBasis(f"the memory bandwidth of {gpu.name or 'the GPU'} is not known")
    efficiency, low_ratio = (spec.efficiency_ratio, spec.low_ratio) if spec else (1.0, 0.0)
    if server.kind not in FITTED_ENGINES:
        efficiency, low_ratio = min(efficiency, OTHER_ENGINE_EFFICIENCY), OTHER_ENGINE_LOW_RATIO
    return _Memory(
        label=gpu.name or f"GPU {gpu.index}",
        peak_bytes_per_s=peak,
        read_bytes_per_s=efficiency * peak,
        fitted=spec is not None,
        kv_ratio=GPU_KV_RATIO,
        layer_s=GPU_LAYER_S + (GPU_MOE_LAYER_S if (model.experts or 0) > 1 else 0.0),
        low_ratio=low_ratio,
        high_ratio=GPU_HIGH_RATIO,
        is_gpu=True,
    )


def _ram(model: ModelFacts, device: DeviceFacts) -> _Memory:
    peak = device.ram_bandwidth_bytes_per_s
    cores = device.cpu_physical_cores or (device.cpu_logical_cores or 0) // 2
    if not peak or not cores:
        raise _NoBasis(
            "the RAM bandwidth is not known yet: measuring it takes a second without requests"
        )
    low_bit = model.bits_per_weight is not None and model.bits_per_weight < CPU_LOW_BIT
    return _Memory(
        label="RAM",
        peak_bytes_per_s=peak,
        read_bytes_per_s=min(CPU_EFFICIENCY * peak, CPU_CORE_BYTES_PER_S * cores),
        kv_ratio=CPU_KV_RATIO,
        layer_s=CPU_LAYER_S,
        low_ratio=CPU_LOW_BIT_LOW_RATIO if low_bit else CPU_LOW_RATIO,
        middle_ratio=CPU_LOW_BIT_MIDDLE_RATIO if low_bit else 1.0,
        high_ratio=CPU_HIGH_RATIO,
        is_gpu=False,
    )


def _band(memory: _Memory, reads: _Reads) -> Range:
    predicted = 1 / memory.token_s(reads.weights, reads.kv, reads.layers)
    bound = memory.high_ratio * memory.peak_bytes_per_s / (reads.weights + reads.kv)
    return Range(low=memory.low_ratio * predicted, high=bound)


def _middle(memory: _Memory, reads: _Reads) -> float:
    return memory.middle_ratio / memory.token_s(reads.weights, reads.kv, reads.layers)


def _as_configured(
    memory: _Memory,
    reads: _Reads,
    model: ModelFacts,
    device: DeviceFacts,
    server: ServerFacts,
    sequences: float,
) -> Range | None:
    """Return what a split between GPU and RAM, or a share of a batch, should give one request."""
    batch = max(sequences, 1.0)
    layers_on_gpu = server.gpu_layers
    if memory.is_gpu and layers_on_gpu is not None and 0 <= layers_on_gpu < reads.layers:
        return _split(memory, reads, device, layers_on_gpu / (reads.layers + 1), batch)
    if batch == 1.0:
        return None
    # Sequences of a batch share the weights; each may choose other experts, up to all of them.
    # On a CPU they share the cores too: at worst the batch costs as much as one after the other.
    most = reads.weights * batch if (model.experts or 0) > 1 else reads.weights
    slowest_s = memory.token_s(min(most, model.file_bytes or most), reads.kv * batch, reads.layers)
    low = memory.low_ratio / slowest_s / (1.0 if memory.is_gpu else batch)
    bytes_at_least = reads.weights + reads.kv * batch
    return Range(low=low, high=memory.high_ratio * memory.peak_bytes_per_s / bytes_at_least)


def _split(
    vram: _Memory, reads: _Reads, device: DeviceFacts, gpu_ratio: float, batch: float
) -> Range | None:
    peak = device.ram_bandwidth_bytes_per_s
    if not peak:
        return None
    weights, kv, layers = reads.weights, reads.kv * batch, reads.layers
    cpu_s = (weights + kv / CPU_KV_RATIO) / (SPLIT_RAM_EFFICIENCY * peak)
    mixed_s = gpu_ratio * vram.token_s(weights, kv, layers) + (1 - gpu_ratio) * cpu_s
    least_s = (weights + kv) * (gpu_ratio / vram.peak_bytes_per_s + (1 - gpu_ratio) / peak)
    return Range(
        low=SPLIT_LOW_RATIO / mixed_s / batch,
        high=min(SPLIT_HIGH_RATIO / mixed_s, 1 / least_s),
    )


def _notes(memory: _Memory, model: ModelFacts, server: ServerFacts) -> tuple[str, ...]:
    notes = [f"reference: the whole model in the memory of {memory.label}"]
    if not memory.is_gpu:
        notes = ["reference: the whole model in RAM, whose bandwidth was measured on this machine"]
    if server.kv_type_k is None or server.kv_type_v is None:
        notes.append("type of the KV cache not known, counted as 16-bit")
    if memory.middle_ratio != 1.0:
        notes.append("weights under 4 bits: on a CPU limited by unpacking them, hence a wide band")
    if memory.is_gpu and server.kind not in FITTED_ENGINES:
        notes.append(f"few published single-stream measurements of {server.kind}: a wide band")
    return tuple(notes)


def _basis(memory: _Memory, reads: _Reads, band: Range | None) -> str:
    bandwidth = f"{memory.peak_bytes_per_s / 1e9:.0f} GB/s"
    if band is not None:
        per_rate = (reads.weights + reads.kv) / memory.peak_bytes_per_s
        bandwidth += f" x {band.low * per_rate:.2f}-{band.high * per_rate:.2f}"
    return (
        f"roofline, weights {_size(reads.weights)}, KV {_size(reads.kv)} "
        f"at {reads.context_tokens:,} tokens, {bandwidth}"
    )


def _size(count: float) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.1f} MiB"
