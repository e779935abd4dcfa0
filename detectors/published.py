"""One published measurement, or a line of `slowtok fit --batch`, as facts that `expect` takes.

Strategy: what the row says of the model is completed from the table of published models; what
neither says is assumed, in the open: every assumption is a note, and widens the band.

The columns are those of `fit/data/decode_rates.csv`; any may be missing or empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slowtok.config.hardware import find_card
from slowtok.config.models import KnownModel, find_model
from slowtok.detectors.case import Envelope, Range
from slowtok.detectors.engine import ModelFacts, ServerFacts
from slowtok.detectors.machine import DeviceFacts, GpuFacts

# A shape that is guessed from the size is off by less than that in bytes read; no published source.
ASSUMED_LOW_RATIO, ASSUMED_HIGH_RATIO = 0.75, 1.2
SPECULATION_WORDS = ("mtp", "dflash", "eagle", "draft", "spec")
TOGETHER = ("vllm", "sglang", "exllamav3", "mlc")  # several GPUs share each layer by default
ENGINES = ("llamafile", "vllm", "exllamav3", "exllamav2", "sglang", "mlc", "mlx", "ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The facts of one row; `assumed` are those that the row did not say."""

    model: ModelFacts
    device: DeviceFacts
    server: ServerFacts
    context_tokens: int
    memory_bytes: float | None = None
    assumed: tuple[str, ...] = field(default_factory=tuple)

    def widen(self, envelope: Envelope) -> Envelope:
        """Widen the band and raise the ceiling for what was assumed, and say so."""
        if not self.assumed:
            return envelope
        because = (*envelope.because, *self.assumed)
        ceiling, band = envelope.ceiling_tps, envelope.decode
        if ceiling is not None:
            ceiling *= ASSUMED_HIGH_RATIO
        if band is not None:
            low, high = band.low * ASSUMED_LOW_RATIO, band.high * ASSUMED_HIGH_RATIO
            band = Range(low=low, high=high)
        return replace(envelope, decode=band, ceiling_tps=ceiling, because=because)


def facts_of(row: Mapping[str, object]) -> Published:
    """Return the facts of a row.

    Raises:
        ValueError: a column does not hold what it should, or nothing says how large the model is.
    """
    assumed: list[str] = []
    model = _model(row, assumed)
    depth = _number(row, "context_depth")
    if depth is None:
        assumed.append("context not given, taken as 0")
    name = _text(row, "gpu")
    card = find_card(name)
    memory_gb = _number(row, "vram_gb")
    return Published(
        model=model,
        device=_device(row, name),
        server=_server(row),
        context_tokens=max(round(depth or 0), 0),
        memory_bytes=memory_gb * 2**30 if memory_gb else card.memory_bytes if card else None,
        assumed=tuple(assumed),
    )


def _model(row: Mapping[str, object], assumed: list[str]) -> ModelFacts:
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
            raise ValueError("neither weights_gib nor params_b with a known quant is given")
        file_bytes = parameters * bits / 8
        assumed.append(f"size of the weights not given, {bits:.2g} bits each assumed")
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
    facts: ModelFacts, row: Mapping[str, object], file_bytes: float, assumed: list[str]
) -> ModelFacts:
    """Fill the shape of a model outside the table from the row, or from others of its size."""
    parameters = float(facts.parameters or file_bytes * 8 / 4.8)
    active = _scaled(row, "active_params_b", 1e9)
    is_moe = active is not None and active < 0.8 * parameters
    read = file_bytes * active / parameters if is_moe and active else file_bytes
    layers, kv_heads, head_dim = _number(row, "n_layers"), _kv_heads(row), _number(row, "head_dim")
    if layers is None or kv_heads is None or head_dim is None:
        assumed.append("shape of the model not known, taken like others of its size")
    else:
        assumed.append("model not in the table: taken as plain grouped attention")
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


def _device(row: Mapping[str, object], name: str) -> DeviceFacts:
    bandwidth = _scaled(row, "mem_bw_gbs", 1e9)
    if _on_cpu(row, name):
        threads = _number(row, "threads")
        cores = round(threads) if threads else 64  # not told: then bandwidth alone limits
        return DeviceFacts(gpus=(), cpu_physical_cores=cores, ram_bandwidth_bytes_per_s=bandwidth)
    card, memory_gb = find_card(name), _number(row, "vram_gb")
    count = max(round(_number(row, "n_gpus") or 1), 1)
    gpus = tuple(
        GpuFacts(
            index=index,
            name=name or None,
            total_bytes=round(memory_gb * 2**30) if memory_gb else None,
            bandwidth_bytes_per_s=bandwidth or (card.bandwidth_bytes_per_s if card else None),
        )
        for index in range(count)
    )
    return DeviceFacts(gpus=gpus)


def _server(row: Mapping[str, object]) -> ServerFacts:
    backend, layers = _text(row, "backend").lower(), _text(row, "ngl_or_offload")
    kv = _text(row, "kv_dtype").lower() or "f16"
    words = f"{backend} {_text(row, 'model').lower()}"
    kind = next((kind for kind in ENGINES if kind in backend), "llama-server")
    count = max(round(_number(row, "n_gpus") or 1), 1)
    together = count > 1 and kind in TOGETHER
    return ServerFacts(
        kind=kind,
        version=_text(row, "engine_build") or None,
        gpu_layers=int(layers) if layers.isdigit() else None,
        kv_type_k=kv,
        kv_type_v=kv,
        split_mode=None if together else "layer",
        tensor_parallel=count if together else None,
        speculative=any(word in backend for word in SPECULATION_WORDS) or "dflash" in words,
    )


def _on_cpu(row: Mapping[str, object], name: str) -> bool:
    said = _text(row, "ngl_or_offload").lower()
    backend = _text(row, "backend").lower()
    return said == "cpu" or backend.endswith("cpu") or name.startswith("CPU ")


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
