"""What to do when GPU memory spills into RAM: the words, with computed values."""

from slowtok.detectors.case import Case
from slowtok.detectors.footprint import GIB, context_that_fits, reserved_tokens
from slowtok.detectors.placement import vram
from slowtok.detectors.placement_cures import CONTEXT_STEP, load_again, smaller_kv, steps
from slowtok.detectors.placement_why import used_tokens

FREED_TOO_BYTES = GIB
"""To free as much as spills is not enough: buffers grow. No published source; llama.cpp and Ollama
leave as much."""

VARIABLE = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"


def remedy(case: Case, spilled_bytes: float | None) -> str:
    """Return the steps, the cheapest first; `spilled_bytes` is what each token fetches."""
    smaller = [step for step in (_smaller_context(case), smaller_kv(case)) if step]
    return steps(
        _close_others(spilled_bytes),
        *(f"{step}, then {load_again(case)}" for step in smaller),
        _fewer_layers(case),
        _forbid(case),
    )


def _close_others(spilled_bytes: float | None) -> str:
    much = "some"
    if spilled_bytes is not None:
        much = f"about {(spilled_bytes + FREED_TOO_BYTES) / GIB:.1f} GiB"
    return f"free {much} of the GPU's memory: close browsers, games and other programs"


def _smaller_context(case: Case) -> str | None:
    """Return the context that fits beside the weights and the others' memory, if it is enough."""
    held, reserved, used = vram(case), reserved_tokens(case.server), used_tokens(case)
    if held is None or reserved is None or used is None:
        return None
    room = held.usable_bytes - (held.others_bytes or 0) - FREED_TOO_BYTES
    most = context_that_fits(case.model, case.server, room)
    tokens = 0 if most is None else most // CONTEXT_STEP * CONTEXT_STEP
    if not used <= tokens < reserved:
        return None
    per_slot = tokens // max(case.server.slots or 1, 1)
    return {
        "llama-server": f"start llama-server with -c {tokens}",
        "ollama": f"set num_ctx to {per_slot} (OLLAMA_CONTEXT_LENGTH={per_slot})",
        "vllm": f"start vLLM with --max-model-len {per_slot}",
    }.get(case.server.kind, f"set the context to {per_slot} tokens")


def _fewer_layers(case: Case) -> str:
    return {
        "llama-server": "lower -ngl by a few layers: on the CPU they cost less than over the link",
        "ollama": "lower num_gpu by a few layers: on the CPU they cost less than over the link",
        "vllm": "lower --gpu-memory-utilization",
    }.get(case.server.kind, "put fewer layers on the GPU, or take a smaller quantisation")


def _forbid(case: Case) -> str | None:
    """Return how to have an error in place of a slow engine."""
    if case.server.unified_memory:
        return f"unset {VARIABLE}, so that the engine refuses what does not fit"
    if any(gpu.vendor == "amd" for gpu in case.device.gpus or ()):
        return None
    if case.device.os == "linux":
        return f"look for {VARIABLE} in the engine's environment and unset it"
    return (
        "set 'CUDA - Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback' in the NVIDIA control "
        "panel of Windows, so that the engine refuses what does not fit"
    )
