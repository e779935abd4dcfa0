"""One published measurement, or a line of `slowtok fit --batch`, as facts that `expect` takes.

Strategy: what the row says of the model is completed from the table of published models; what
neither says is assumed, in the open: every assumption is a note, and widens the band.

The columns are those of `fit/data/decode_rates.csv` and `fit/data/engine_rates.csv`, and `experts`
and `experts_used`; any may be missing or empty. `read_gb` is what is known better than from the
size: the weights read for one token, in GB.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slowtok.config.hardware import find_card, find_gpu
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.assumed_model import Assumption, completed
from slowtok.detectors.expectation.memory import TYPICAL_RAM_BYTES_PER_S
from slowtok.detectors.expectation.serving import SERVING_ENGINES

MOST = {"n_gpus": 1024, "n_layers": 10_000, "n_kv_heads": 10_000, "head_dim": 100_000}
"""Larger numbers are no setup but a mistake."""
NO_CONTEXT = Assumption(note="context not given, taken as 0", high_ratio=1.0)
SPECULATION_WORDS = ("mtp", "dflash", "eagle", "draft", "spec")
SPECULATING_MODELS = ("mtp", "dflash", "eagle")  # that carry what guesses ahead
SAME_BANDWIDTH_RATIO = 0.1
MANY_CORES = 64  # where their number is not told: then bandwidth alone limits
TOGETHER = (*SERVING_ENGINES, "exllamav3", "mlc")  # several GPUs share each layer by default
ENGINES = (
    "llamafile",
    "ik_llama",
    *SERVING_ENGINES,
    "exllamav3",
    "exllamav2",
    "mlc",
    "mlx-vlm",
    "mlx",
    "ollama",
)
ALSO_CALLED = {"tensorrt": "trtllm", "trt-llm": "trtllm", "turbomind": "lmdeploy"}


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


# Where a published measurement had its weights and its KV cache: a reading of `ngl_or_offload`.
#
# People write it in many ways: a number of layers, "ngl 32/41", "n-cpu-moe 36/48", "experts on
# CPU", "cpu", "no-kv-offload", and sometimes the bandwidth of the RAM beside it.

_LAYERS = re.compile(r"^(?:ngl |-ngl )?(-?\d+)(?:/\d+)?\b")
_EXPERT_LAYERS = re.compile(r"n-cpu-moe (\d+)|(\d+) on cpu")
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) gb/s")
EVERY_LAYER = 10_000
"""More layers than any model has: all experts in RAM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedPlacement:
    """What is where. None is not known: the engine then puts as many layers on GPUs as fit."""

    gpu_layers: int | None = None
    cpu_moe_layers: int | None = None
    kv_on_gpu: bool | None = None
    ram_bandwidth_bytes_per_s: float | None = None

    @property
    def is_cpu(self) -> bool:
        """Return True if nothing was on a GPU."""
        return self.gpu_layers == 0


def facts_of(row: Mapping[str, object], model: ModelFacts | None = None) -> Published:
    """Return the facts of a row; `model` is one that is known better than from it.

    Raises:
        Unsized: nothing says how large the model is.
        ValueError: a column does not hold what it should.
    """
    model, assumed = (model, ()) if model else _model(row)
    depth = _number(row, "context_depth")
    if depth is None:
        assumed = (*assumed, NO_CONTEXT)
    placement = placement_of(_text(row, "ngl_or_offload"))
    device = _device(row, placement)
    ram = device.ram_bandwidth_bytes_per_s
    return Published(
        model=model,
        device=replace(
            device,
            ram_bandwidth_bytes_per_s=ram or TYPICAL_RAM_BYTES_PER_S,
            ram_bandwidth_source="given",
        ),
        server=_server(row, placement),
        context_tokens=max(round(depth or 0), 0),
        assumed=assumed,
        ram_assumed=ram is None,
    )


def _model(row: Mapping[str, object]) -> tuple[ModelFacts, tuple[Assumption, ...]]:
    parameters, layers = _scaled(row, "params_b", 1e9), _number(row, "n_layers")
    size, read = _scaled(row, "weights_gib", 2**30), _scaled(row, "read_gb", 1e9)
    told = ModelFacts(
        name=_text(row, "model") or None,
        quantisation=_text(row, "quant") or None,
        parameters=None if parameters is None else round(parameters),
        file_bytes=None if size is None else round(size),
        read_bytes=None if read is None else round(read),
        layers=None if layers is None else round(layers),
        experts=_whole(row, "experts"),
        experts_used=_whole(row, "experts_used"),
    )
    return completed(
        told,
        active_parameters=_scaled(row, "active_params_b", 1e9),
        kv_heads=_kv_heads(row),
        head_dim=_number(row, "head_dim"),
    )


def _device(row: Mapping[str, object], placement: StatedPlacement) -> DeviceFacts:
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


def _server(row: Mapping[str, object], placement: StatedPlacement) -> ServerFacts:
    backend, model = _backend(row), _text(row, "model").lower()
    kv = _text(row, "kv_dtype").lower() or "f16"
    kind = _engine(backend)
    count = max(round(_number(row, "n_gpus") or 1), 1)
    together = min(_whole(row, "tp") or count, count) if kind in TOGETHER else 1
    return ServerFacts(
        kind=kind,
        version=_text(row, "engine_build") or None,
        gpu_layers=placement.gpu_layers,
        cpu_moe_layers=placement.cpu_moe_layers,
        kv_on_gpu=placement.kv_on_gpu,
        kv_type_k=kv,
        kv_type_v=kv,
        split_mode=None if together > 1 else "layer",
        tensor_parallel=together if together > 1 else None,
        eager=_text(row, "eager").lower() in {"1", "true"} or None,
        speculative=bool(_text(row, "spec"))
        or any(word in backend for word in SPECULATION_WORDS)
        or ("spec" not in row and any(word in model for word in SPECULATING_MODELS)),
    )


def _backend(row: Mapping[str, object]) -> str:
    """Return what the row says of the engine, in two columns of which one is enough."""
    return f"{_text(row, 'backend')} {_text(row, 'engine')}".strip().lower()


def _engine(backend: str) -> str:
    for called, kind in ALSO_CALLED.items():
        backend = backend.replace(called, kind)
    return next((kind for kind in ENGINES if kind in backend), "llama-server")


def _on_cpu(row: Mapping[str, object], name: str) -> bool:
    said = placement_of(_text(row, "ngl_or_offload"))
    backend = _backend(row)
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
    if not 0 <= value <= MOST.get(column, 1e9):
        raise ValueError(f"{column} is out of range: {text!r}")
    return value


def _whole(row: Mapping[str, object], column: str) -> int | None:
    value = _number(row, column)
    return round(value) if value else None


def _scaled(row: Mapping[str, object], column: str, unit: float) -> float | None:
    value = _number(row, column)
    return value * unit if value else None


def placement_of(said: str) -> StatedPlacement:
    """Return what the words say."""
    said = said.strip().lower()
    bandwidth = _BANDWIDTH.search(said)
    return StatedPlacement(
        gpu_layers=_gpu_layers(said),
        cpu_moe_layers=_expert_layers(said),
        kv_on_gpu=False if "no-kv-offload" in said else None,
        ram_bandwidth_bytes_per_s=float(bandwidth[1]) * 1e9 if bandwidth else None,
    )


def _gpu_layers(said: str) -> int | None:
    if said in {"cpu", "none"}:
        return 0
    if said == "all" or "experts on" in said:
        return EVERY_LAYER if "few" not in said else None
    found = _LAYERS.match(said)
    return None if found is None or int(found[1]) < 0 else int(found[1])


def _expert_layers(said: str) -> int | None:
    found = _EXPERT_LAYERS.search(said)
    if found is not None:
        return int(found[1] or found[2])
    return EVERY_LAYER if said.startswith("experts on cpu") else None
