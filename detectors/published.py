"""One published measurement, or a line of `slowtok fit --batch`, as facts that `expect` takes.

Strategy: what the row says of the model is completed from the table of published models; what
neither says is assumed, in the open: every assumption is a note, and widens the band.

The columns are those of `fit/data/decode_rates.csv`; any may be missing or empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from slowtok.config.hardware import find_card, find_gpu
from slowtok.config.models import KnownModel, find_model
from slowtok.detectors.case import Envelope, Range
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.machine import DeviceFacts, GpuFacts
from slowtok.detectors.published_placement import Placement, placement_of

SPECULATION_WORDS = ("mtp", "dflash", "eagle", "draft", "spec")
SPECULATING_MODELS = ("mtp", "dflash", "eagle")  # that carry what guesses ahead
# Nobody said how fast the RAM is: dual-channel DDR4-3200 reads 51 GB/s, DDR5-5600 90; phones and
# old laptops half of it, servers many times as much. 298 published CPU rows of unknown RAM lie at
# 10 to 65 GB/s (median 40) of weights read. No published source for the two ratios.
TYPICAL_RAM_BYTES_PER_S = 60e9
SAME_BANDWIDTH_RATIO = 0.1
MANY_CORES = 64  # where their number is not told: then bandwidth alone limits
TYPICAL_RAM_LOW_RATIO, TYPICAL_RAM_HIGH_RATIO = 0.40, 2.0
TOGETHER = ("vllm", "sglang", "exllamav3", "mlc")  # several GPUs share each layer by default
ENGINES = (
    "llamafile",
    "ik_llama",
    "vllm",
    "exllamav3",
    "exllamav2",
    "sglang",
    "mlc",
    "mlx",
    "ollama",
)


class Unsized(ValueError):
    """Nothing says how large the model is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What a row did not say, and how far the rates may be off for it: no published source."""

    note: str
    low_ratio: float = 0.75
    high_ratio: float = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The facts of one row; `assumed` is what the row did not say.

    `ram_assumed` says that the RAM's bandwidth is a typical one.
    """

    model: ModelFacts
    device: DeviceFacts
    server: ServerFacts
    context_tokens: int
    assumed: tuple[Assumption, ...] = ()
    ram_assumed: bool = False

    def widen(self, envelope: Envelope) -> Envelope:
        """Widen the band and raise the ceiling for what was assumed, and say so."""
        return replace(
            envelope,
            decode=self.widened(envelope.decode),
            ceiling_tps=self.raised(envelope.ceiling_tps),
            because=(*envelope.because, *(each.note for each in self.assumed)),
        )

    def raised(self, ceiling_tps: float | None) -> float | None:
        """Raise a ceiling for what was assumed of model and context."""
        if ceiling_tps is None:
            return None
        return ceiling_tps * prod(each.high_ratio for each in self.assumed)

    def widened(self, band: Range | None) -> Range | None:
        """Widen a band for what was assumed of model and context."""
        if band is None:
            return None
        low, high = (
            prod(a.low_ratio for a in self.assumed),
            prod(a.high_ratio for a in self.assumed),
        )
        return Range(low=band.low * low, high=band.high * high)


def facts_of(row: Mapping[str, object], model: ModelFacts | None = None) -> Published:
    """Return the facts of a row; `model` is one that is known better than from it.

    Raises:
        Unsized: nothing says how large the model is.
        ValueError: a column does not hold what it should.
    """
    assumed: list[Assumption] = []
    model = model or _model(row, assumed)
    depth = _number(row, "context_depth")
    if depth is None:
        assumed.append(Assumption(note="context not given, taken as 0", high_ratio=1.0))
    placement = placement_of(_text(row, "ngl_or_offload"))
    device = _device(row, placement)
    ram = device.ram_bandwidth_bytes_per_s
    return Published(
        model=model,
        device=replace(device, ram_bandwidth_bytes_per_s=ram or TYPICAL_RAM_BYTES_PER_S),
        server=_server(row, placement),
        context_tokens=max(round(depth or 0), 0),
        assumed=tuple(assumed),
        ram_assumed=ram is None,
    )


def _model(row: Mapping[str, object], assumed: list[Assumption]) -> ModelFacts:
    parameters = _scaled(row, "params_b", 1e9)
    layers = _number(row, "n_layers")
    kv_heads, head_dim = _kv_heads(row), _number(row, "head_dim")
    known = find_model(
        _text(row, "model"),
        parameters=parameters,
        layers=None if layers is None else round(layers),
        kv_heads=None if kv_heads is None else round(kv_heads),
        head_dim=None if head_dim is None else round(head_dim),
    )
    parameters = parameters or (known.parameters if known else None)
    file_bytes = _scaled(row, "weights_gib", 2**30)
    quantisation = _text(row, "quant") or None
    if file_bytes is None:
        bits = bits_of(quantisation)
        if parameters is None or bits is None:
            raise Unsized("neither weights_gib nor params_b with a known quant is given")
        file_bytes = parameters * bits / 8
        note = f"size of the weights not given, {bits:.2g} bits each assumed"
        assumed.append(Assumption(note=note, low_ratio=0.95, high_ratio=1.03))
    facts = ModelFacts(
        name=_text(row, "model") or None,
        quantisation=quantisation,
        parameters=None if parameters is None else round(parameters),
        file_bytes=round(file_bytes),
        bits_per_weight=None if parameters is None else file_bytes * 8 / parameters,
    )
    if known is not None:
        return _with_geometry(facts, known, file_bytes)
    return _guessed(facts, row, file_bytes, assumed)


def _with_geometry(facts: ModelFacts, known: KnownModel, file_bytes: float) -> ModelFacts:
    read = file_bytes * known.read_parameters / known.parameters
    for kind, exact in known.read_bytes_by_type:
        if kind in (facts.quantisation or "").upper():
            read = min(exact, file_bytes)
    return replace(
        facts,
        read_bytes=round(read),
        layers=known.layers,
        experts=known.experts,
        experts_used=known.experts_used,
        kv_bytes_per_token=known.kv_bytes_per_token,
        kv_window_tokens=known.window_tokens,
        kv_window_bytes_per_token=known.window_bytes_per_token,
        state_bytes=known.state_bytes,
        active_parameters=round(known.read_parameters),
    )


def _guessed(
    facts: ModelFacts, row: Mapping[str, object], file_bytes: float, assumed: list[Assumption]
) -> ModelFacts:
    """Fill the shape of a model outside the table from the row, or from others of its size."""
    parameters = float(facts.parameters or file_bytes * 8 / 4.8)
    active = _scaled(row, "active_params_b", 1e9)
    is_moe = active is not None and active < 0.8 * parameters
    read = file_bytes * active / parameters if is_moe and active else file_bytes
    layers, kv_heads, head_dim = _number(row, "n_layers"), _kv_heads(row), _number(row, "head_dim")
    if layers is None or kv_heads is None or head_dim is None:
        note = "shape of the model not known, taken like others of its size"
    else:
        note = "model not in the table: taken as plain grouped attention"
    assumed.append(Assumption(note=note))
    layers = layers or 16 * (parameters / 1e9) ** 0.38  # 1B 16, 8B 35, 70B 80
    return replace(
        facts,
        read_bytes=round(read),
        layers=round(layers),
        experts=64 if is_moe else None,  # how many is not known, and only "several" matters
        kv_bytes_per_token=4.0 * round(layers) * (kv_heads or 8) * (head_dim or 128),
    )


def bits_of(quantisation: str | None) -> float | None:
    """Return the usual bits per weight of a file of this type, embeddings included.

    From the block layouts, and for the mixed types from published files of 7B to 70B.
    """
    name = (quantisation or "").upper().replace("-", "_")
    return next((bits for word, bits in BITS if word in name), None)


BITS = (
    ("IQ1", 1.8), ("TQ1", 1.7), ("TQ2", 2.1), ("IQ2", 2.6), ("Q2_K", 3.2), ("IQ3", 3.6),
    ("Q3_K", 3.9), ("IQ4", 4.5), ("NVFP4", 4.6), ("MXFP4", 4.4), ("Q4_0", 4.6), ("Q4_1", 5.0),
    ("Q4_K_S", 4.6), ("Q4_K", 4.9), ("Q5", 5.7), ("Q6", 6.6), ("Q8", 8.5), ("FP8", 8.2),
    ("INT8", 8.2), ("W8", 8.2), ("AWQ", 4.7), ("GPTQ", 4.7), ("INT4", 4.7), ("4BIT", 4.5),
    ("BF16", 16.0), ("F16", 16.0), ("FP16", 16.0), ("F32", 32.0),
)  # fmt: skip


def _device(row: Mapping[str, object], placement: Placement) -> DeviceFacts:
    bandwidth, name = _scaled(row, "mem_bw_gbs", 1e9), _text(row, "gpu")
    if _on_cpu(row, name):
        threads = _number(row, "threads")
        cores = round(threads) if threads else MANY_CORES
        ram = placement.ram_bandwidth_bytes_per_s or _of_ram(bandwidth, name)
        return DeviceFacts(gpus=(), cpu_physical_cores=cores, ram_bandwidth_bytes_per_s=ram)
    card, memory = find_card(name), _scaled(row, "vram_gb", 2**30)
    memory = memory or (card.memory_bytes if card else None)
    count = max(round(_number(row, "n_gpus") or 1), 1)
    gpus = tuple(
        GpuFacts(
            index=index,
            name=name or None,
            total_bytes=round(memory) if memory else None,
            bandwidth_bytes_per_s=bandwidth or (card.bandwidth_bytes_per_s if card else None),
        )
        for index in range(count)
    )
    ram = placement.ram_bandwidth_bytes_per_s
    return DeviceFacts(gpus=gpus, cpu_physical_cores=MANY_CORES, ram_bandwidth_bytes_per_s=ram)


def _of_ram(bandwidth: float | None, name: str) -> float | None:
    """Return the bandwidth unless it is that of the card that was not used."""
    spec = find_gpu(name)
    if bandwidth is None or spec is None or spec.unified or spec.card is None:
        return bandwidth
    is_cards = abs(bandwidth / spec.card.bandwidth_bytes_per_s - 1) < SAME_BANDWIDTH_RATIO
    return None if is_cards else bandwidth


def _server(row: Mapping[str, object], placement: Placement) -> ServerFacts:
    backend, model = _text(row, "backend").lower(), _text(row, "model").lower()
    kv = _text(row, "kv_dtype").lower() or "f16"
    kind = next((kind for kind in ENGINES if kind in backend), "llama-server")
    count = max(round(_number(row, "n_gpus") or 1), 1)
    together = count > 1 and kind in TOGETHER
    return ServerFacts(
        kind=kind,
        version=_text(row, "engine_build") or None,
        gpu_layers=placement.gpu_layers,
        cpu_moe_layers=placement.cpu_moe_layers,
        kv_on_gpu=placement.kv_on_gpu,
        kv_type_k=kv,
        kv_type_v=kv,
        split_mode=None if together else "layer",
        tensor_parallel=count if together else None,
        speculative=any(word in backend for word in SPECULATION_WORDS)
        or any(word in model for word in SPECULATING_MODELS),
    )


def _on_cpu(row: Mapping[str, object], name: str) -> bool:
    said = placement_of(_text(row, "ngl_or_offload"))
    backend = _text(row, "backend").lower()
    alone = backend.endswith("cpu") and "+" not in backend
    return said.is_cpu or alone or name.startswith("CPU ")


def _kv_heads(row: Mapping[str, object]) -> float | None:
    """Return the KV heads: one where the row says MLA, whose latent is shared by all heads."""
    said = _text(row, "n_kv_heads").upper()
    return 1.0 if said == "MLA" else _number(row, "n_kv_heads")


def _text(row: Mapping[str, object], column: str) -> str:
    value = row.get(column)
    return "" if value is None else str(value).strip()


def _number(row: Mapping[str, object], column: str) -> float | None:
    text = _text(row, column)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column} is not a number: {text!r}") from None
    if not 0 <= value < 1e9:
        raise ValueError(f"{column} is out of range: {text!r}")
    return value


def _scaled(row: Mapping[str, object], column: str, unit: float) -> float | None:
    value = _number(row, column)
    return value * unit if value else None
