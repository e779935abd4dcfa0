"""Facts about the inference engine and its model, from replies, command line and files.

Invariants as in `slowtok.detectors.case.case`: `None` is not known, zero is a measurement.
"""

from slowtok.detectors.case.value import frozen_dataclass


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about the inference engine, from what it reports, its command line and its environment.

    `gpu_layers` is the number requested (-1: the engine decides). `threads` is the requested number
    of decode threads. `slept` says that the engine had unloaded the model before this request.
    `gpu_indices` are the GPUs that its processes use: None if that is not known, empty if they use
    none. `loaded_bytes` is the model's size in memory, `loaded_gpu_bytes` the part on GPUs, as
    reported by the engine. `kv_cache_tokens` is the capacity of the whole KV cache.
    `gpu_memory_ratio` is the share of a GPU that the engine may fill (vLLM). `started_unix_s` is
    when its process began. `swa_full` keeps the whole KV cache of layers with a sliding window,
    `checkpoints` is how many states of a sequence are kept to return to (both of llama-server),
    `cache_block_tokens` is the block size of the prefix cache (vLLM). `through` is the program that
    started the engine and passes requests on to it, if that is another. `template_habits` is what
    its chat template does to earlier turns: `thinking`, `tools-last`, `clock`; empty if none of
    these, None if the template is not known.
    """

    kind: str = "unknown"
    through: str | None = None
    name: str | None = None
    url: str | None = None
    version: str | None = None
    local: bool | None = None
    pid: int | None = None
    unmapped: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    flash_attention: str | None = None
    memory_mapped: bool | None = None
    speculative: bool | None = None
    slept: bool | None = None
    uptime_s: float | None = None
    gpu_indices: tuple[int, ...] | None = None
    batch_tokens: int | None = None
    micro_batch_tokens: int | None = None
    cpu_moe_layers: int | None = None
    kv_on_gpu: bool | None = None
    split_mode: str | None = None
    tensor_parallel: int | None = None
    loaded_bytes: int | None = None
    loaded_gpu_bytes: int | None = None
    loaded_models: tuple[str, ...] | None = None
    kv_cache_tokens: int | None = None
    gpu_memory_ratio: float | None = None
    prefix_caching: bool | None = None
    eager: bool | None = None
    cpu_offload_bytes: int | None = None
    unified_memory: bool | None = None
    started_unix_s: float | None = None
    swa_full: bool | None = None
    checkpoints: int | None = None
    cache_block_tokens: int | None = None
    template_habits: tuple[str, ...] | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The model's geometry, as far as the bytes read per token depend on it.

    `read_bytes` are the weights read for each generated token (without embedding look-ups, with the
    used experts only), `active_parameters` the number of those weights. `kv_bytes_per_token` grows
    with the context; layers with a sliding window add `kv_window_bytes_per_token` for up to
    `kv_window_tokens`; both at 16-bit. `state_bytes` is the recurrent state of one sequence, of the
    same size at any context, both read and written for each token; zero if there is none.
    `file_bytes`, and what is computed from it, are of the weights as the engine loads them. If its
    options change them in an unknown way, they are None and `bytes_unknown` says why.
    """

    name: str | None = None
    path: str | None = None
    digest: str | None = None
    quantisation: str | None = None
    parameters: int | None = None
    file_bytes: int | None = None
    read_bytes: int | None = None
    layers: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    kv_bytes_per_token: float | None = None
    kv_window_tokens: int | None = None
    kv_window_bytes_per_token: float | None = None
    bits_per_weight: float | None = None
    state_bytes: float | None = None
    active_parameters: int | None = None
    bytes_unknown: str | None = None


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class EngineActivity:
    """What the engine's own counters gained over the `span_s` seconds around a request.

    They count every request of the engine: `alone` says that only this one was there. `running_max`
    and `kv_used_max_ratio` are the highest readings. The `*_s` sums are over the requests that
    ended in the span.
    """

    span_s: float
    alone: bool | None = None
    running_max: int | None = None
    kv_used_max_ratio: float | None = None
    preemptions: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None


# What kinds of engines have in common, as sets of `ServerFacts.kind`, each with what it means.
#
# A set that only one module needs is in that module. Two sets may hold the same engines: they say
# different things about them. `llamafile` and `trtllm` are kinds of published rates; no probe
# recognises them yet.

LLAMA_CPP = frozenset({"llama-server", "ollama", "lm-studio", "llamafile"})
"""Built on llama.cpp: they share its kernels, its switches and its KV cache. That gives a request
its room before it begins, throws none out later, and keeps no more of a sliding window than it is
wide."""

LLAMA_CPP_WITH_OPTIONS = frozenset({"llama-server", "ollama"})
"""Built on llama.cpp, with options and variables that slowtok sees at the process or its runner; LM
Studio sets them in code."""

PAGED_KV_CACHE = frozenset({"vllm", "sglang"})
"""All conversations share one cache in blocks, of which the oldest go first. It keeps the blocks of
a sliding window, too."""

WHOLE_ON_GPU = frozenset({"vllm", "sglang"})
"""Put all weights on GPUs, or do not start; what is left they fill with KV cache."""

SPINNING_PROCESSES = frozenset({"vllm", "sglang", "trtllm"})
"""Have an API server, a scheduler and workers, which wait for GPUs and for each other by spinning
on a core each: how many cores they use together says nothing, one of them that is busy all the time
does."""

COMPILING = frozenset({"vllm", "sglang"})
"""Compile kernels at run time on any card; llama.cpp's CUDA builds bring their code along."""

LOADED_BEFORE_ANSWERING = frozenset({"llama-server", "vllm", "sglang", "trtllm"})
"""Have their model when they answer, but for what they put away and tell. Others may load it for a
request: without timings of their own, the wait for the first token may have been that."""
