"""What to do when GPU memory spills into RAM: the words, with computed values."""

import math

from slowtok.detectors.case import Case
from slowtok.detectors.footprint import GIB, context_that_fits, reserved_tokens
from slowtok.detectors.placement import vram
from slowtok.detectors.placement_cures import (
    context_said,
    load_again,
    sensible_context,
    smaller_kv,
    steps,
)
from slowtok.detectors.placement_why import used_tokens

FREED_TOO_BYTES = GIB
"""To free as much as spills is not enough: buffers grow. No published source; llama.cpp and Ollama
leave as much."""

MOST_HIDDEN_BYTES = 3 * GIB
"""What a desktop's programs hold at most where that cannot be seen. No published source; WSL2 hides
1.3 GiB when idle."""

VARIABLE = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"


def remedy(case: Case, spilled_bytes: float | None) -> str:
    """Return the steps, the cheapest first; `spilled_bytes` is how much lies in RAM."""
    smaller = [step for step in (_smaller_context(case), smaller_kv(case)) if step]
    return steps(
        _free(case, spilled_bytes),
        *(f"{step}, then {load_again(case)}" for step in smaller),
        _fewer_layers(case, spilled_bytes),
        _forbid(case),
    )


def _free(case: Case, spilled_bytes: float | None) -> str:
    """Return what makes room: other programs, or less of the model where they cannot hold so much.

    On Windows and in WSL what they hold is hidden, and may be more than they are named for.
    """
    if spilled_bytes is None:
        return "free some of the GPU's memory: close browsers, games and other programs"
    held, most = vram(case), float(MOST_HIDDEN_BYTES)
    if held is not None and held.server_bytes is not None and held.hidden_bytes is not None:
        most = held.hidden_bytes + (held.others_bytes or 0)
    much = f"about {(spilled_bytes + FREED_TOO_BYTES) / GIB:.1f} GiB"
    if spilled_bytes > most:
        return f"take a smaller quantisation or model, so that {much} less is needed"
    return f"free {much} of the GPU's memory: close browsers, games and other programs"


def _smaller_context(case: Case) -> str | None:
    """Return the context that fits beside the weights and the others' memory, if it is enough."""
    held, reserved, used = vram(case), reserved_tokens(case.server), used_tokens(case)
    if held is None or reserved is None or used is None:
        return None
    room = held.usable_bytes - (held.others_bytes or 0) - FREED_TOO_BYTES
    most, slots = context_that_fits(case.model, case.server, room), max(case.server.slots or 1, 1)
    tokens = sensible_context((most or 0) // slots) * slots
    return context_said(case.server, tokens) if used <= tokens < reserved else None


def _fewer_layers(case: Case, spilled_bytes: float | None) -> str:
    layers, size = case.model.layers, case.model.file_bytes
    by = "a few"
    if spilled_bytes is not None and layers and size:
        by = f"{min(math.ceil(spilled_bytes / (size / layers)), layers)}"
    fewer = f"by {by} layers: on the CPU they cost less than over the link"
    return {
        "llama-server": f"lower -ngl {fewer}",
        "ollama": f"lower num_gpu {fewer}",
        "vllm": "lower --gpu-memory-utilization",
    }.get(case.server.kind, "put fewer layers on the GPU, or take a smaller quantisation")


def _forbid(case: Case) -> str | None:
    """Return how to have an error in place of a slow engine."""
    if case.server.unified_memory:
        return f"unset {VARIABLE}, so that the engine refuses what does not fit"
    if any(gpu.vendor == "amd" for gpu in case.device.gpus or ()) or case.device.os == "wsl":
        return None  # the policy is of Windows' own programs: those inside WSL are not in its list
    if case.device.os == "linux":
        return f"look for {VARIABLE} in the engine's environment and unset it"
    return (
        "set 'CUDA - Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback' in the NVIDIA control "
        "panel of Windows, so that the engine refuses what does not fit"
    )
