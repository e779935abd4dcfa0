"""Facts from engines' probes and command lines, before they become `ServerFacts`."""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case.engine import ModelFacts
from slowtok.proxy.engines.models.loading import Loading

Kind = Literal[
    "llama-server",
    "vllm",
    "ollama",
    "sglang",
    "lm-studio",
    "llama-swap",
    "litellm",
    "lemonade",
    "docker-model-runner",
    "openai",
    "unknown",
]

ALL_LAYERS = 999  # what users write for "all"; no model has as many


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which engine answers, by its replies; `relayed` where another slowtok passes them on."""

    kind: Kind
    version: str | None = None
    relayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What a command line and its environment ask for; None where they do not say.

    `context_tokens` is the whole context; with `context_shared` each slot may use all of it, else
    the slots divide it. `gpu_layers`: -1 leaves it to the engine, `ALL_LAYERS` means all.
    `threads` below 1 means every logical core.
    """

    model_path: str | None = None
    alias: str | None = None
    gpu_layers: int | None = None
    cpu_moe_layers: int | None = None
    threads: int | None = None
    context_tokens: int | None = None
    context_shared: bool | None = None
    slots: int | None = None
    batch_tokens: int | None = None
    micro_batch_tokens: int | None = None
    flash_attention: str | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    kv_on_gpu: bool | None = None
    memory_mapped: bool | None = None
    speculative: bool | None = None
    split_mode: str | None = None
    tensor_parallel: int | None = None
    sleep_idle_s: int | None = None
    gpu_memory_ratio: float | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    cpu_offload_bytes: int | None = None
    swa_full: bool | None = None
    checkpoints: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One model in memory, of an engine that loads models when they are asked for.

    `memory_bytes` are weights, KV cache and buffers; `gpu_bytes` is the part of them on GPUs.
    `argv` is the command line of the process that runs the model, where the engine tells it;
    `flags` is what the engine itself says that it loaded the model with, `model` what it says of
    the model's geometry. `kind`, `version` and `url` are those of the engine that runs it, where
    a program that is no engine itself has started that on this machine.
    """

    name: str
    aliases: tuple[str, ...] = ()
    path: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    memory_bytes: int | None = None
    gpu_bytes: int | None = None
    speculative: bool | None = None
    sleeping: bool | None = None
    argv: tuple[str, ...] = ()
    flags: Flags | None = None
    model: ModelFacts | None = None
    template_habits: tuple[str, ...] | None = None
    kind: Kind | None = None
    version: str | None = None
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What an engine says of itself over HTTP. `context_tokens` is for one request.

    `models` are the names that requests may use. `loaded` are those in memory, of an engine that
    loads models when they are asked for; None of any other. It holds `most_loaded` at once, those
    that were used last; None where it does not tell. `flags` are the options that it says it was
    started with, `weights` is what these do to the weights when it loads them.
    """

    version: str | None = None
    models: tuple[str, ...] = ()
    model_path: str | None = None
    quantisation: str | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    context_tokens: int | None = None
    slots: int | None = None
    speculative: bool | None = None
    sleeping: bool | None = None
    loading: bool = False
    loaded: tuple[Loaded, ...] | None = None
    most_loaded: int | None = None
    flags: Flags | None = None
    weights: Loading | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_ratio: float | None = None
    prefix_caching: bool | None = None
    cache_block_tokens: int | None = None
    template_habits: tuple[str, ...] | None = None
