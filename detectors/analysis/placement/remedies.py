"""Remedies for a model that is partly in RAM: phrases with computed values.

Each function returns one step as a phrase without a capital and a full stop, or None where it would
not help or its value is not known. Memory is divided when a model is loaded, so every change ends
with loading it again.
"""

import math
from collections.abc import Iterable, Mapping

from slowtok.detectors.analysis.placement.reasons import (
    Reason,
    Root,
    decides_itself,
    holders,
    reason_for,
)
from slowtok.detectors.analysis.placement.where import Placement, off_gpu, serving_gpus
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import WHOLE_ON_GPU, ServerFacts
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.machine import GpuVendor
from slowtok.detectors.expectation.footprint import (
    FIT_MARGIN_BYTES,
    GIB,
    bits_that_fit,
    context_that_fits,
    embedding_bytes,
    kv_bytes,
    kv_type_ratio,
    reserved_tokens,
    saved_by_q8_kv_bytes,
    type_of,
)
from slowtok.detectors.expectation.reads import every_expert_bytes

LEAST_CONTEXT = 2048
"""Less is no use to a chat. Heuristic; Ollama's own default was 2,048 for long."""

MIN_SAVED_BYTES = GIB // 4
"""Less is not worth a changed setting. Heuristic."""

MAX_NAMED = 3
LEAST_BITS = 2.5
"""Below this models lose much of what they can do; a smaller model does better. Heuristic."""


MOST_BITS = 16.0
"""What weights are published in at most: above it the size of the file says more."""


def steps(*found: str | None) -> str:
    """Return the steps as one sentence, the cheapest first."""
    known = [step for step in found if step]
    text = "; or ".join(known)
    return f"{text[:1].upper()}{text[1:]}."


def engine_name(server: ServerFacts) -> str:
    """Return the engine's name as people write it."""
    return {
        "ollama": "Ollama",
        "vllm": "vLLM",
        "llama-server": "llama-server",
        "lm-studio": "LM Studio",
    }.get(server.kind, "the engine")


def load_again(case: Case) -> str:
    """Return how to load the model anew with this engine."""
    model = case.timeline.model or case.model.name or "MODEL"
    return {
        "llama-server": "restart llama-server",
        "ollama": f"run 'ollama stop {_plain(model)}' so that the next request loads it again",
        "vllm": "restart vLLM",
    }.get(case.server.kind, "unload the model and load it again")


def smaller_context(case: Case, reason: Reason) -> str | None:
    """Return the context that fits and holds what was used, for this engine's setting."""
    tokens = fitting_context(case, reason)
    return None if tokens is None else context_said(case.server, tokens)


def context_said(server: ServerFacts, tokens: int) -> str:
    """Return how to set a context of so many tokens over all slots with this engine."""
    per_slot = max(tokens // max(server.slots or 1, 1), 1)
    return {
        "llama-server": f"start llama-server with -c {tokens}",
        "ollama": f"set num_ctx to {per_slot} in the Modelfile or in the request's options, or "
        f"OLLAMA_CONTEXT_LENGTH={per_slot} for the Ollama server",
        "vllm": f"start vLLM with --max-model-len {per_slot}",
    }.get(server.kind, f"set the context to {per_slot} tokens")


def fitting_context(case: Case, reason: Reason) -> int | None:
    """Return what fits of the usual sizes, over all slots, and is no less than what was used."""
    reserved = reserved_tokens(case.server)
    kv = None if reserved is None else kv_bytes(case.model, case.server, reserved)
    beside = None if kv is None else reason.needed_bytes - kv
    room = _room_bytes(case, reason)
    most = context_that_fits(case.model, case.server, room, beside_kv_bytes=beside)
    if most is None:
        return None
    slots, used = max(case.server.slots or 1, 1), reason.used_tokens or 1
    tokens = sensible_context(most // slots) * slots
    if tokens >= used:
        return tokens
    tokens = LEAST_CONTEXT
    while tokens * slots < used:
        tokens += max((1 << (tokens.bit_length() - 1)) // 2, LEAST_CONTEXT)
    kv_used, kv_then = (kv_bytes(case.model, case.server, n) or 0.0 for n in (used, tokens * slots))
    needed = reason.needed_for_used_bytes - kv_used + kv_then
    return tokens * slots if needed <= reason.room_bytes - reason.others_bytes else None


def sensible_context(most: int) -> int:
    """Return the largest usual size of a context up to `most`: a power of two, or half more.

    0 below 2,048 tokens. Half more only from 4,096 on: nobody sets 3,072.
    """
    if most < LEAST_CONTEXT:
        return 0
    power = 1 << (most.bit_length() - 1)
    half_more = power + power // 2
    return half_more if power > LEAST_CONTEXT and half_more <= most else power


def smaller_kv(case: Case) -> str | None:
    """Return how to halve the KV cache, with what that frees."""
    saved = saved_by_q8_kv_bytes(case.model, case.server)
    ratio = kv_type_ratio(case.server)
    if saved < MIN_SAVED_BYTES or ratio is None or ratio < 1:
        return None
    how = {
        "llama-server": "keep the KV cache in 8 bits (-ctk q8_0 -ctv q8_0 with -fa on)",
        "ollama": "keep the KV cache in 8 bits (OLLAMA_KV_CACHE_TYPE=q8_0 with "
        "OLLAMA_FLASH_ATTENTION=1)",
        "vllm": "keep the KV cache in 8 bits (--kv-cache-dtype fp8)",
    }.get(case.server.kind, "keep the KV cache in 8 bits, with flash attention")
    return f"{how}, which frees {saved / GIB:.1f} GiB"


def smaller_weights(case: Case, reason: Reason, needed_bytes: float) -> str | None:
    """Return the quantisation that makes what needs `needed_bytes` fit; None where none does."""
    file_bytes = case.model.file_bytes
    if not file_bytes:
        return "take a smaller quantisation"
    on_gpu_ratio = 1 - embedding_bytes(case.model) / file_bytes
    beside = needed_bytes - file_bytes * on_gpu_ratio
    room = (_room_bytes(case, reason) - beside) / on_gpu_ratio
    bits = bits_that_fit(case.model, room)
    if room >= file_bytes or room <= 0 or (bits is not None and bits < LEAST_BITS):
        return None
    if bits is None or bits > MOST_BITS:
        return f"take a smaller quantisation, a file of at most {room / GIB:.1f} GiB"
    name = type_of(bits)
    such = f", such as {name}" if name and case.server.kind not in WHOLE_ON_GPU else ""
    return f"take a quantisation of at most {bits:.1f} bits per weight{such}"


def experts_in_ram(case: Case, reason: Reason) -> str | None:
    """Return how many layers' experts have to stay in RAM: the cheapest part to leave there."""
    if case.server.kind != "llama-server" or case.server.cpu_moe_layers:
        return None
    layers = None if decides_itself(case.server) else fewest_expert_layers(case, reason)
    if not layers:
        return None
    return (
        f"start llama-server with -ngl 999 --n-cpu-moe {layers}, which leaves only experts in RAM"
    )


def fewest_expert_layers(case: Case, reason: Reason) -> int | None:
    """Return of how many layers the experts have to stay in RAM so that the rest fits the GPUs.

    None for a model without experts, and where not even that is enough.
    """
    model = case.model
    if not (model.experts and model.experts > 1 and model.layers and model.file_bytes):
        return None
    per_layer = every_expert_bytes(model) / model.layers or model.file_bytes / model.layers
    over = reason.needed_bytes + FIT_MARGIN_BYTES - (reason.room_bytes - reason.others_bytes)
    layers = max(math.ceil(over / per_layer), 0)
    return layers if layers <= model.layers else None


def more_layers(case: Case, placed: Placement) -> str:
    """Return how to have all layers, or all that there is room for, on the GPU."""
    layers, server = fitting_layers(case, placed), case.server
    told = server.gpu_layers if server.gpu_layers and server.gpu_layers > 0 else None
    if layers is not None and told is not None and layers <= told:
        layers = None
    return layers_said(server.kind, layers, case.model.layers)


def layers_said(kind: str, count: int | None = None, layers: int | None = None) -> str:
    """Return how this engine puts `count` layers on the GPU, or all of them, the output too.

    `layers` is how many the model has, without the output.
    """
    many = "all layers" if count is None else f"{count} layers"
    return {
        "llama-server": f"start llama-server with -ngl {count or 999}",
        "ollama": f"set num_gpu to {count or (layers or 998) + 1} (PARAMETER in the Modelfile, or "
        "in the request's options)",
        "lm-studio": f"set GPU offload to {many} in the model's load settings in LM Studio",
    }.get(kind, f"let the engine put {many} on the GPU")


def layers_option(kind: str) -> str:
    """Return what this engine calls the number of layers on the GPU."""
    return {"ollama": "num_gpu", "lm-studio": "GPU offload"}.get(kind, "-ngl")


def fitting_layers(case: Case, placed: Placement) -> int | None:
    """Return how many layers, the output with them, fit into what is free and what it holds."""
    held, size, layers = placed.vram, placed.need, case.model.layers
    if held is None or held.server_bytes is None or size is None or not layers:
        return None
    whole = layers + 1
    missing = placed.missing_bytes
    if missing is None or not size.placed_bytes:
        return None
    per_layer = size.placed_bytes / whole
    there = whole - missing / per_layer
    more = max(held.free_bytes - FIT_MARGIN_BYTES / 2, 0) / per_layer
    return min(round(there) + int(more), whole)


def stop_others(case: Case, placed: Placement) -> str:
    """Return whom to stop, with what each one holds."""
    names = holders_named(case, placed)
    mine = {_untagged(name) for name in (case.timeline.model, case.model.name) if name}
    siblings = [
        f"'ollama stop {_plain(name)}'"
        for name in case.server.loaded_models or ()
        if case.server.kind == "ollama" and _untagged(name) not in mine
    ]
    if siblings and not names:
        return f"unload the other models ({_listed(siblings[:MAX_NAMED])})"
    if not names:
        return "close the other programs that use the GPU (nvidia-smi lists them)"
    return f"stop {_listed(names)}"


def holders_named(case: Case, placed: Placement) -> list[str]:
    """Return the largest of the others with what they hold."""
    return [
        f"{_plain(other.name) if other.name else 'a process'} with pid {other.pid} and "
        f"{(other.memory_bytes or 0) / 2**20:,.0f} MiB"
        for other in holders(case, placed)[:MAX_NAMED]
    ]


GPU_CHECKS: Mapping[GpuVendor, str] = {
    "nvidia": "check that nvidia-smi works where the engine runs (containers: --gpus all) and that "
    "CUDA_VISIBLE_DEVICES does not hide the GPU",
    "amd": "check that rocminfo works where the engine runs (containers: --device /dev/kfd "
    "--device /dev/dri) and that HIP_VISIBLE_DEVICES does not hide the GPU",
    "apple": "run the engine on macOS itself, whose containers see no GPU",
}
GPU_BUILDS: Mapping[GpuVendor, str] = {
    "nvidia": "CUDA",
    "amd": "ROCm or Vulkan",
    "apple": "Metal",
}


def use_the_gpu(case: Case) -> str:
    """Return how an engine that uses no GPU comes to use it."""
    root = _root_of(case)
    if root not in (None, "told"):
        return steps(f"first remove what keeps it off the GPU ({root})")
    gpus = serving_gpus(case)
    return steps(gpu_advice(case.server.kind, gpus[0].vendor if gpus else None))


def gpu_advice(kind: str, vendor: GpuVendor | None) -> str:
    """Return what to check and which build to take for an engine to use a maker's GPU."""
    vendor = vendor or "nvidia"
    build = GPU_BUILDS[vendor]
    engine = {
        "llama-server": f"use a llama-server build with {build} and start it with "
        "--n-gpu-layers 99",
        "ollama": "look for 'no compatible GPUs' in the Ollama server's log and reinstall Ollama",
        "vllm": f"install the {build} build of vLLM",
        "lm-studio": f"choose the runtime with {build} in LM Studio's settings",
    }.get(kind, f"use a build of the engine with {build}")
    return f"{GPU_CHECKS[vendor]}; then {engine}"


def _root_of(case: Case) -> Root | None:
    """Return why nothing is there, where that can be told."""
    try:
        placed = off_gpu(case)
        return None if placed is None else reason_for(case, placed).root
    except Missing:
        return None


def _room_bytes(case: Case, reason: Reason) -> float:
    """Return what there is for the model beside the others, and what the engine leaves free."""
    margin = FIT_MARGIN_BYTES if decides_itself(case.server) else 0
    return reason.room_bytes - reason.others_bytes - margin


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _plain(name: str) -> str:
    """Return a name in ASCII, on one line."""
    return name.encode("ascii", "replace").decode().replace("\n", " ")


def _untagged(name: str) -> str:
    """Return a model's name without the tag that Ollama adds where none is given."""
    return name.removesuffix(":latest")
