"""Checks an engine's options: settings that cost speed, each with why and what to do.

A default that is fine is never named, and a setting only where it matters: a layer split where
there is a GPU to put layers on, threads where cores compute.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from slowtok.detectors.analysis.cpu import (
    in_words,
    physical_cores,
    threads_option,
    worth_threads,
)
from slowtok.detectors.analysis.gpu.vram import newest_split
from slowtok.detectors.analysis.placement.remedies import layers_option, layers_said
from slowtok.detectors.case.engine import LLAMA_CPP_WITH_OPTIONS
from slowtok.detectors.case.machine import HostSample
from slowtok.detectors.causes.server.flash_attention_off import flash_attention_said
from slowtok.detectors.expectation.footprint import footprint
from slowtok.proxy.inspection.check import Check, State, gib, measured
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen, computes_on_cpu

PLAIN_KV = frozenset({"f32", "f16", "bf16", "fp16", "float16", "bfloat16", "auto"})
DEFAULT_MICRO_BATCH = 512  # llama-server's README

Found = tuple[str, State, str, str]
"""Name, state, what was found, what to do."""
FlagCheck = Callable[[Seen, EngineSeen, ServingSeen], Found | None]


def check_flags(seen: Seen) -> Iterator[Check]:
    """Yield each setting that costs speed; one line of praise where none does."""
    for engine in seen.engines:
        if not (engine.is_here and engine.serving and engine.server.pid is not None):
            continue  # the command line was not seen: what could not be inspected says so
        checks = [check for serving in engine.serving for check in _of(seen, engine, serving)]
        yield from checks or [_nothing(engine)]


def _nothing(engine: EngineSeen) -> Check:
    said = "no option of the command line costs speed here"
    return Check(area="flags", name="flags", about=engine.name, state="ok", said=said)


def _of(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Iterable[Check]:
    several = f"{serving.label}: " if len(engine.serving) > 1 else ""
    for look in LOOKS:
        found = look(seen, engine, serving)
        if found is not None:
            name, state, said, advice = found
            yield Check(
                area="flags", name=name, about=engine.name, state=state,
                said=several + said, advice=advice, numbers=_numbers(seen, engine, serving, name),
            )  # fmt: skip


def _numbers(seen: Seen, engine: EngineSeen, serving: ServingSeen, name: str) -> dict[str, float]:
    server = serving.server
    return {
        "gpu-layers": measured(gpu_layers=server.gpu_layers, layers=serving.model.layers),
        "threads": measured(threads=server.threads, cores=usable_cores(seen, engine)),
        "slots": measured(slots=server.slots, context_tokens=server.context_tokens),
        "cpu-offload": measured(cpu_offload_bytes=server.cpu_offload_bytes),
        "expert-layers": measured(cpu_moe_layers=server.cpu_moe_layers),
        "micro-batch": measured(micro_batch_tokens=server.micro_batch_tokens),
    }.get(name, {})


def _gpu_layers(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    asked, layers = serving.server.gpu_layers, serving.model.layers
    gpus = seen.device.gpus or ()
    if not gpus or asked is None or asked < 0 or serving.server.local is False:
        return None
    option = layers_option(serving.server.kind)
    if asked == 0:
        said = f"{option} is 0: no layer is on the GPU, and the cores read the whole model from RAM"
        return "gpu-layers", "warn", said, _more_layers(seen, serving)
    if layers is None or asked > layers:
        return None
    if asked == layers:
        said = f"{option} is {asked}: the output layer, which counts as one more, is on the CPU"
        return "gpu-layers", "note", said, _more_layers(seen, serving)
    said = f"{option} is {asked}, of {layers} layers and one for the output: the rest is in RAM"
    return "gpu-layers", "warn", said, _more_layers(seen, serving)


def _more_layers(seen: Seen, serving: ServingSeen) -> str:
    need = footprint(serving.model, serving.server)
    samples = seen.gpu_samples().values()
    usable = sum(room.usable_bytes for s in samples if (room := newest_split(s)))
    if need is not None and usable and need.fits(usable) is False:
        return (
            f"the whole model ({gib(need.least_bytes)} or more) does not fit into {gib(usable)}: a "
            "smaller quantisation or context leaves room for more layers"
        )
    kind, layers = serving.server.kind, serving.model.layers
    return f"leave {layers_option(kind)} out, or {layers_said(kind, None, layers)}"


def _expert_layers(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    count = serving.server.cpu_moe_layers
    if not count or not seen.gpus_of(serving.server):
        return None
    said = f"the experts of {count} layers are kept in RAM (--cpu-moe, --n-cpu-moe)"
    advice = "give --n-cpu-moe the smallest number with which the model still fits"
    return "expert-layers", "note", said, advice


def _kv_on_cpu(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    if serving.server.kv_on_gpu is not False or not seen.gpus_of(serving.server):
        return None
    said = "the KV cache is kept in RAM (-nkvo): the longer the context, the slower each token"
    advice = "leave -nkvo out; if the cache then does not fit, take a smaller context"
    if serving.server.kind != "llama-server":
        said = "the KV cache is kept in RAM: the longer the context, the slower each token"
        advice = "let the GPU hold the KV cache; if it then does not fit, take a smaller context"
    return "kv-on-cpu", "warn", said, advice


def _flash_attention(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    server = serving.server
    if server.flash_attention != "off" or not seen.gpus_of(server):
        return None
    types = [t for t in (server.kv_type_k, server.kv_type_v) if t and t.lower() not in PLAIN_KV]
    if types:
        said = (
            f"flash attention is off and the KV cache is {types[0]}, so that it has to be unpacked "
            "at each step"
        )
        advice = f"{flash_attention_said(server.kind)}, or keep the KV cache in f16"
        return "flash-attention", "warn", said, advice
    said = "flash attention is off: long contexts decode and prefill slower, and need more memory"
    return "flash-attention", "warn", said, flash_attention_said(server.kind)


def _threads(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Found | None:
    hard, cores = hard_limit_cores(seen, engine), usable_cores(seen, engine)
    threads = serving.server.threads
    if (
        cores is None
        or serving.server.kind not in LLAMA_CPP_WITH_OPTIONS
        or not computes_on_cpu(seen, serving)
    ):
        return None
    if threads is None:
        return _threads_by_default(seen, engine, serving.server.kind)
    if threads <= cores:
        return None
    kind = serving.server.kind
    said = (
        f"{threads} threads ({threads_option(kind)}) on {cores} cores that the engine may use: "
        "they wait for each other"
    )
    state: State = "warn" if hard is not None and threads > hard else "note"
    return "threads", state, said, f"{in_words(kind, cores)}, one for each core"


def _threads_by_default(seen: Seen, engine: EngineSeen, kind: str) -> Found | None:
    quota, physical = (
        _newest(engine, lambda s: s.server_quota_cores),
        physical_cores(seen.device),
    )
    if quota is None or physical is None or physical <= math.ceil(quota):
        return None
    said = (
        f"{threads_option(kind)} is not set: the engine starts a thread for each of {physical} "
        f"cores, although its CPU quota is {quota:.3g} cores"
    )
    return "threads", "warn", said, f"{in_words(kind, max(int(quota), 1))}, or raise the quota"


def usable_cores(seen: Seen, engine: EngineSeen) -> int | None:
    """Return the cores worth a thread each: full-speed ones, allowed and within the quota."""
    return worth_threads(
        seen.device,
        allowed_cores=_newest(engine, lambda s: s.server_allowed_cores),
        quota_cores=_newest(engine, lambda s: s.server_quota_cores),
    )


def hard_limit_cores(seen: Seen, engine: EngineSeen) -> int | None:
    """Return the cores that can run its threads at once, two hardware threads of one core too."""
    quota = _newest(engine, lambda s: s.server_quota_cores)
    allowed = _newest(engine, lambda s: s.server_allowed_cores)
    limits = (seen.device.cpu_logical_cores, allowed, quota and max(math.ceil(quota), 1))
    return min((int(limit) for limit in limits if limit), default=None)


def _newest(engine: EngineSeen, read: Callable[[HostSample], float | None]) -> float | None:
    return next((value for s in reversed(engine.host) if (value := read(s)) is not None), None)


def _slots(_seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    server = serving.server
    slots, context, whole = server.slots, server.context_tokens, server.kv_cache_tokens
    if server.kind not in LLAMA_CPP_WITH_OPTIONS or not (slots and context and whole):
        return None
    if slots < 2 or whole < 2 * context:  # one cache for all: each request may use all of it
        return None
    said = f"{slots} slots share {whole:,} tokens of context: one request can use {context:,}"
    one = {"ollama": "OLLAMA_NUM_PARALLEL=1"}.get(server.kind, "-np 1")
    advice = f"if requests come one at a time, {one} gives the whole context to each of them"
    return "slots", "note", said, advice


def _micro_batch(_seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    size = serving.server.micro_batch_tokens
    if (
        size is None
        or size >= DEFAULT_MICRO_BATCH
        or serving.server.kind not in LLAMA_CPP_WITH_OPTIONS
    ):
        return None
    option = {"ollama": "num_batch"}.get(serving.server.kind, "-ub")
    said = (
        f"{option} is {size}, below the default of {DEFAULT_MICRO_BATCH}: prompts are read slower"
    )
    return "micro-batch", "note", said, f"leave {option} out unless memory is short"


def _unified_memory(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    gpus = seen.gpus_of(serving.server)
    if not serving.server.unified_memory or not gpus or any(g.unified_memory for g in gpus):
        return None
    said = (
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY is set: what does not fit the GPU is kept in RAM and "
        "fetched over the PCIe link"
    )
    advice = "unset it, and take a smaller context or fewer layers on the GPU"
    return "unified-memory", "warn", said, advice


def _eager(seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    if not serving.server.eager or computes_on_cpu(seen, serving):
        return None
    said = "--enforce-eager turns CUDA graphs off: each step waits for Python to launch its kernels"
    return "eager", "warn", said, "leave --enforce-eager out; all that it saves is memory"


def _cpu_offload(_seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    size = serving.server.cpu_offload_bytes
    if not size:
        return None
    said = f"{gib(size)} of weights cross the PCIe link for every token (--cpu-offload-gb)"
    advice = "take a smaller quantisation or a smaller --max-model-len, and leave the option out"
    return "cpu-offload", "warn", said, advice


def _prefix_caching(_seen: Seen, _engine: EngineSeen, serving: ServingSeen) -> Found | None:
    if serving.server.prefix_caching is not False or serving.server.kind != "vllm":
        return None
    said = "prefix caching is off: each turn of a conversation computes the earlier ones again"
    return "prefix-caching", "note", said, "leave --no-enable-prefix-caching out"


LOOKS: tuple[FlagCheck, ...] = (
    _gpu_layers,
    _expert_layers,
    _kv_on_cpu,
    _flash_attention,
    _threads,
    _slots,
    _micro_batch,
    _unified_memory,
    _eager,
    _cpu_offload,
    _prefix_caching,
)
