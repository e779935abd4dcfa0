"""The arguments of `slowtok fit` as facts: the model, the machine, the context.

The numbers are read as a row of published measurements is, by
`slowtok.detectors.expectation.published`; a model that is there, a file or a folder, is read
itself, and then its own words win.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from slowtok.config.hardware import Card, card_called, cards_with
from slowtok.config.models import (
    KnownModel,
    find_model,
    known_models,
    trained_context_tokens,
)
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.detectors.expectation.assumed_model import (
    BITS,
    Assumption,
    Unsized,
    bits_of,
    completed_live,
)
from slowtok.detectors.expectation.published import ENGINES, Published, facts_of
from slowtok.detectors.expectation.reads import KV_RATIO
from slowtok.proxy.cli.fit.names import (
    as_typed_at_hugging_face,
    gpu_named,
    published_name,
    size_of_latest,
    squeezed,
)

LLAMA_CPP = ("llama.cpp", "llama-server", "lm-studio")  # one and the same, computed alike
KNOWN_ENGINES = (*LLAMA_CPP, *ENGINES)
NO_GPU = frozenset({"cpu", "none"})
MAX_NAMES = 4
USUAL_CONTEXT_TOKENS = 4096

OTHER_MEMORY = Assumption(note="", low_ratio=0.65, high_ratio=1.35)
"""The GeForce RTX 3060 with 8 GB has 240 GB/s, that with 12 GB 360 (NVIDIA's specifications)."""

USUAL_QUANT = "Q4_K_M"
USUAL_QUANTS = {"gpt-oss": "MXFP4"}
"""What Ollama's library gives where a tag names no type, and what most people take from elsewhere
too: nearly always Q4_K_M; gpt-oss as it was published (https://ollama.com/library)."""

TYPES_TO_CHOOSE = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")
"""Types in which models of Ollama's library and of Hugging Face come most."""

OTHER_TYPE = Assumption(note="", low_ratio=0.9, high_ratio=1.1)
"""Types of about four bits read 4.4 to 5.0 bits per weight. Heuristic."""

OLLAMA_NAME = re.compile(r"(?:[\w.-]+/)?([\w.-]+):([\w.-]+)")
_TYPE_IN_TAG = re.compile(r"(?:^|-)(i?q\d\w*|bf16|fp?16|f32|mxfp4)$", re.IGNORECASE)


class AskError(ValueError):
    """Something that was asked cannot be used: one line that names what and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """The options of `slowtok fit`; None is not given. Parameters in billions, sizes in GiB."""

    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    vram: float | None = None
    bandwidth: float | None = None
    ram_bandwidth: float | None = None
    params: float | None = None
    active_params: float | None = None
    quant: str | None = None
    weights: float | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    context: int | None = None
    depth: int | None = None
    kv_type: str | None = None
    gpu_layers: int | None = None
    cpu_moe_layers: int | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The same as facts; the KV cache has room for `context_tokens`.

    `trained_context_tokens` is the longest context that the model was trained for, where it is one
    of the published ones; None is not known. `of_types` are the facts in each type of weights that
    can be chosen: only `facts` where the type is fixed. `asked` is what was typed, a size added.
    """

    facts: Published
    context_tokens: int
    model_title: str
    machine: str
    trained_context_tokens: int | None = None
    of_types: tuple[Published, ...] = ()
    asked: FitOptions = FitOptions()

    @property
    def title(self) -> str:
        """The model and the machine."""
        return f"{self.model_title} on {self.machine}"


def question(asked: FitOptions, present: DeviceFacts | None) -> Question:
    """Return what was asked; `present` is this machine, where no GPU was named.

    Raises:
        AskError: an option cannot be used, or too little was said.
    """
    _check(asked)
    context = asked.context or USUAL_CONTEXT_TOKENS
    depth = context // 2 if asked.depth is None else asked.depth
    if depth > context:
        raise AskError(
            f"--depth {depth}: must be at most the context of {context:,} tokens (--context)"
        )
    asked, as_sized = _sized(asked)
    typed = asked
    asked, as_pulled = _as_pulled(asked)
    facts = _facts(asked, (*as_sized, *as_pulled), present, depth)
    types = TYPES_TO_CHOOSE if asked.quant == USUAL_QUANT and not typed.quant else ()
    others = (
        facts if quant == asked.quant else _facts(replace(asked, quant=quant), (), present, depth)
        for quant in types
    )
    return Question(
        facts=facts,
        context_tokens=context,
        model_title=_model_title(_by_own_name(facts.model, asked.model)),
        machine=_machine(facts.device),
        trained_context_tokens=_trained_context_tokens(asked.model),
        of_types=tuple(others) or (facts,),
        asked=typed,
    )


def _facts(
    asked: FitOptions,
    as_pulled: tuple[Assumption, ...],
    present: DeviceFacts | None,
    depth: int,
) -> Published:
    """Return the model and the machine as facts."""
    asked, as_sold = _as_sold(asked)
    name, card = _gpu(asked)
    try:
        facts = facts_of(_row(asked, name, card, depth), _read(asked))
    except Unsized:
        raise AskError(_too_little(asked)) from None
    model, assumed = completed_live(facts.model)
    facts = replace(facts, model=model, assumed=(*as_pulled, *as_sold, *facts.assumed, *assumed))
    return _on(facts, asked, present)


def check_positive(name: str, value: float) -> None:
    """Refuse what no size and no rate can be.

    Raises:
        AskError: zero, less, endless or no number.
    """
    if not 0 < value < math.inf:
        must = "be a finite number" if value == math.inf else "be more than 0"
        raise AskError(f"--{name.replace('_', '-')} {value:g}: must {must}")


def _check(asked: FitOptions) -> None:
    for field in fields(asked):
        value = getattr(asked, field.name)
        may_be_less = field.name in {"gpu_layers", "cpu_moe_layers", "depth"}
        if isinstance(value, int | float) and not may_be_less:
            check_positive(field.name, value)
    if asked.experts is not None and not 0 < (asked.experts_used or 0) <= asked.experts:
        raise AskError(
            f"--experts {asked.experts}: give --experts-used, too, from 1 to {asked.experts}"
        )
    if asked.depth is not None and asked.depth < 0:
        raise AskError(f"--depth {asked.depth}: must be 0 or more")
    if asked.quant is not None and bits_of(asked.quant) is None and asked.weights is None:
        known = ", ".join(word for word, _ in BITS)
        raise AskError(
            f"--quant {asked.quant}: not a known type; known are {known}, with any ending; for "
            "another one give the size of the weights as --weights in GiB"
        )
    if asked.engine is not None and not any(e in asked.engine.lower() for e in KNOWN_ENGINES):
        raise AskError(f"--engine {asked.engine}: not one of {', '.join(KNOWN_ENGINES)}")
    if asked.kv_type is not None and asked.kv_type.lower() not in KV_RATIO:
        raise AskError(f"--kv-type {asked.kv_type}: not one of {', '.join(KV_RATIO)}")


def _as_sold(asked: FitOptions) -> tuple[FitOptions, tuple[Assumption, ...]]:
    """Return it with the GPU's own name in place of a shop's, and what that assumes."""
    if asked.gpu is None:
        return asked, ()
    meant = gpu_named(asked.gpu)
    if meant.count is not None and asked.gpus not in {None, meant.count}:
        raise AskError(f"--gpu {asked.gpu}: --gpus {asked.gpus} says another number")
    asked = replace(asked, gpu=meant.name or None, gpus=asked.gpus or meant.count)
    if meant.other_memory_gib is None:
        return asked, ()
    vram = meant.other_memory_gib if asked.vram is None else asked.vram
    if meant.is_unified:
        return replace(asked, vram=vram), ()
    note = f"the bandwidth of the one with {meant.own_gib} GB assumed; --bandwidth gives another"
    return replace(asked, vram=vram), (replace(OTHER_MEMORY, note=note),)


def _sized(asked: FitOptions) -> tuple[FitOptions, tuple[Assumption, ...]]:
    """Return it with the size that the bare name of a family means, and what that assumes."""
    if asked.model is None or _is_there(asked.model):
        return asked, ()
    model = as_typed_at_hugging_face(asked.model)
    asked = replace(asked, model=model)
    size = None if asked.params is not None else size_of_latest(model)
    if size is None:
        return asked, ()
    family = model.removesuffix(":latest")
    named = "-".join(family.lower().split()) + f":{size}"
    note = f"no size named: {named}, which Ollama takes, is assumed; name the model with its size"
    return replace(asked, model=named), (Assumption(note=note, low_ratio=1.0, high_ratio=1.0),)


def _as_pulled(asked: FitOptions) -> tuple[FitOptions, tuple[Assumption, ...]]:
    """Return it with the type of weights that a published name means, and what that assumes."""
    name = asked.model
    if name is None or asked.quant or asked.weights or _is_there(name):
        return asked, ()
    if told := _TYPE_IN_TAG.search(name.rpartition(":")[2]):
        return replace(asked, quant=told[1].upper().replace("FP16", "F16")), ()
    if not OLLAMA_NAME.fullmatch(name) and _find(asked) is None:
        return asked, ()
    family = squeezed(name)
    usual = (quant for own, quant in USUAL_QUANTS.items() if family.startswith(own))
    quant = next(usual, USUAL_QUANT)
    note = f"no type of weights named: {quant}, the usual one, is assumed; set it with --quant"
    return replace(asked, quant=quant), (replace(OTHER_TYPE, note=note),)


def _is_there(model: str) -> bool:
    return Path(model).expanduser().exists()


def _find(asked: FitOptions) -> KnownModel | None:
    return find_model(published_name(asked.model), parameters=asked.params and asked.params * 1e9)


def _gpu(asked: FitOptions) -> tuple[str | None, Card | None]:
    """Return the GPU's name as the tables have it, and its card."""
    if asked.gpu is None or asked.gpu.lower() in NO_GPU:
        return None, None
    card = card_called(asked.gpu)
    if card is not None:
        return card.name, card
    if asked.bandwidth is not None:
        return asked.gpu, None
    meant = cards_with(asked.gpu)[:MAX_NAMES]
    did_you_mean = f"; did you mean {' or '.join(meant)}?" if meant else ""
    said = (
        "slowtok's table of GPUs does not have it; give its bandwidth as --bandwidth in GB/s, and "
        "its memory as --vram in GiB"
    )
    raise AskError(f"--gpu {asked.gpu}: {said}{did_you_mean}")


def _row(asked: FitOptions, gpu: str | None, card: Card | None, depth: int) -> Mapping[str, object]:
    on_cpu = gpu is None
    bandwidth = asked.ram_bandwidth if on_cpu else asked.bandwidth
    if bandwidth is None and card is not None:
        bandwidth = card.bandwidth_bytes_per_s / 1e9
    return {
        "gpu": gpu, "n_gpus": asked.gpus, "vram_gb": asked.vram, "mem_bw_gbs": bandwidth,
        "backend": asked.engine, "model": published_name(asked.model), "params_b": asked.params,
        "active_params_b": asked.active_params, "quant": asked.quant, "weights_gib": asked.weights,
        "n_layers": asked.layers, "n_kv_heads": asked.kv_heads, "head_dim": asked.head_dim,
        "experts": asked.experts, "experts_used": asked.experts_used, "context_depth": depth,
        "kv_dtype": asked.kv_type, "ngl_or_offload": "cpu" if on_cpu else asked.gpu_layers,
    }  # fmt: skip


def _read(asked: FitOptions) -> ModelFacts | None:
    """Return the facts of a model that is there; None where only its name or numbers are given."""
    if asked.model is None:
        return None
    path = Path(asked.model).expanduser()
    if not path.exists():
        looks_like_a_path = path.suffix in {".gguf", ".safetensors"} or len(path.parts) > 2
        if looks_like_a_path:
            raise AskError(f"{asked.model}: no such file or folder")
        return None
    try:
        facts: ModelFacts = _reader(path).read(path)
    except Exception as error:  # noqa: BLE001  a foreign file can raise anything; one line will do
        what = "Hugging Face folder" if path.is_dir() else "GGUF file"
        raise AskError(f"{path}: cannot be read as a {what}: {_in_words(error)}") from None
    return replace(facts, name=facts.name or path.stem)


def _trained_context_tokens(model: str | None) -> int | None:
    """Return the longest context that a model was trained for: by its own files, else its name."""
    if model is None or not _is_there(model):
        return trained_context_tokens(model) or trained_context_tokens(published_name(model))
    path = Path(model).expanduser()
    tokens: int | None = _reader(path).trained_context_tokens(path)
    return tokens


def _reader(path: Path) -> Any:
    """Return the module that reads a model's folder or file."""
    from slowtok.proxy.engines.models import gguf_facts, hf_facts  # noqa: PLC0415 - numpy is slow

    return hf_facts if path.is_dir() else gguf_facts


def _in_words(error: Exception) -> str:
    """Return why a model's file could not be read, without Python's own words for it."""
    if isinstance(error, FileNotFoundError):
        return f"it has no {Path(str(error.filename)).name}"
    if isinstance(error, OSError):
        return error.strerror or "it cannot be opened"
    if isinstance(error, KeyError):
        return f"it tells no {error.args[0]}"
    return str(error) or type(error).__name__


def _on(facts: Published, asked: FitOptions, present: DeviceFacts | None) -> Published:
    """Return the facts on the machine that was asked about."""
    server = replace(facts.server, cpu_moe_layers=asked.cpu_moe_layers)
    device, ram = facts.device, asked.ram_bandwidth
    if present is not None and asked.gpu is None:
        gpus = (present.gpus or ())[: asked.gpus]
        server = replace(server, gpu_layers=asked.gpu_layers if gpus else 0)
        device, ram = replace(present, gpus=gpus), present.ram_bandwidth_bytes_per_s or None
        ram = asked.ram_bandwidth * 1e9 if asked.ram_bandwidth else ram
    elif ram is not None:
        ram *= 1e9
    assumed = facts.device.ram_bandwidth_bytes_per_s
    device = replace(
        device,
        ram_bandwidth_bytes_per_s=ram or assumed,
        ram_bandwidth_source="given" if asked.ram_bandwidth else device.ram_bandwidth_source,
        cpu_physical_cores=device.cpu_physical_cores or facts.device.cpu_physical_cores,
    )
    return replace(facts, device=device, server=server, ram_assumed=ram is None)


def _too_little(asked: FitOptions) -> str:
    if asked.model is None:
        if asked.params is not None:
            return (
                f"--params {asked.params:g}: the type of the weights is missing; give it as "
                "--quant, like Q4_K_M, or the size of the weights as --weights in GiB"
            )
        return (
            "no model was named: give a GGUF file, a Hugging Face folder or a model's name, or "
            "--params and --quant"
        )
    if _find(asked) is not None:
        return f"{asked.model}: give its --quant, like Q4_K_M, or its size as --weights in GiB"
    meant = get_close_matches(asked.model, [model.name for model in known_models()], MAX_NAMES)
    did_you_mean = f"; did you mean {' or '.join(meant)}?" if meant else ""
    said = (
        "there is no such file, and slowtok knows no published model of that name; give a GGUF "
        "file, or --params and --quant"
    )
    return f"{asked.model}: {said}{did_you_mean}"


def _by_own_name(model: ModelFacts, asked: str | None) -> ModelFacts:
    """Return a distilled model under its own name, not under that of its base."""
    return replace(model, name=asked) if published_name(asked) != asked else model


def _model_title(model: ModelFacts) -> str:
    name = model.name or f"a model of {(model.parameters or 0) / 1e9:.3g}B"
    is_told = not model.quantisation or model.quantisation in name
    return name if is_told else f"{name} {model.quantisation}"


def _machine(device: DeviceFacts) -> str:
    gpus = device.gpus or ()
    count = f"{len(gpus)} x " if len(gpus) > 1 else ""
    return count + (gpus[0].name or "a GPU" if gpus else "the CPU")
