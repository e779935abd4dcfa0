"""More was put on the GPU than it holds, so the driver silently keeps the rest in RAM.

Signal:
The GPU is busy all the time but draws little power, its memory is full, and 30 to 100 % of what its
PCIe link carries goes into it all through decode, because each token fetches what does not fit.
GPUs with layers of one model do so in turns, each for its part of the time. Without PCIe counters,
the sign is a GPU that is busy while its memory controller is not. An AMD driver reports how much it
moved out (evicted). A spill may begin within a request, when the KV cache crosses the limit.

Not to be confused with:
- `partial-offload`: the engine itself keeps layers on the CPU, so CPU threads are busy and the link
  is quiet.
- `multi-gpu-split`: several GPUs exchange results, and as much goes out as comes in.
- Traffic in prefill is by design: for large batches the engine sends over weights that are kept in
  RAM.
- A full memory alone is no sign: vLLM fills it on purpose. Without the variable below, Linux never
  spills on an NVIDIA GPU: CUDA runs out of memory instead.
- GPUs that share the machine's memory have nowhere to spill to.

Remedy:
Ask for less: use a smaller or quantised KV cache, put fewer layers on the GPU, or close other
programs. Or forbid the spill, so that asking for too much is an error and not slow: on Windows with
the CUDA Sysmem Fallback Policy, in llama.cpp by unsetting GGML_CUDA_ENABLE_UNIFIED_MEMORY.

Sources:
- AtomicBot-ai/atomic-llama-cpp-turboquant#77 (Windows, 10 times slower: GPU 100 % busy, its memory
  controller 2 %, CPU idle).
- ollama/ollama#9974 (full utilisation at low power), #7584 (Windows driver from 531 on).
- amdgpu_fdinfo.c in the Linux kernel: amd-evicted-vram.
- `slowtok.detectors.analysis.gpu.spill`: the arithmetic. No public trace of the PCIe counters is
  known.
"""

import math

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.spill import (
    Spill,
    spill_of,
    spilled_bytes,
)
from slowtok.detectors.analysis.placement.reasons import used_tokens
from slowtok.detectors.analysis.placement.remedies import (
    context_said,
    load_again,
    sensible_context,
    smaller_kv,
    steps,
)
from slowtok.detectors.analysis.placement.where import vram_held
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import UNNAMED, Evidence, Finding, Traits
from slowtok.detectors.expectation.footprint import GIB, context_that_fits, reserved_tokens

TITLE = "GPU memory spills into RAM"
TRAITS = Traits(requires="gpu", persistent=True)

# What to do when GPU memory spills into RAM: the words, with computed values.

FREED_TOO_BYTES = GIB
"""To free as much as spills is not enough: buffers grow. Heuristic; llama.cpp and Ollama
leave as much."""

MAX_HIDDEN_BYTES = 3 * GIB
"""What a desktop's programs hold at most where that cannot be seen. Heuristic; WSL2 hides
1.3 GiB when idle."""

VARIABLE = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"


def detect(case: Case) -> Finding | None:
    """Fire when the GPU has to fetch a part of each token's bytes from RAM."""
    if not decodes_on_gpu(case):
        return None
    spill = spill_of(case)
    if spill is None:
        return None
    return _finding(case, spill) if spill.is_spill else UNNAMED


def _finding(case: Case, spill: Spill) -> Finding:
    return Finding(
        phase="decode",
        confidence=spill.confidence,
        lost_s=spill.lost_s,
        summary=f"{spill.said}, because GPU memory is full; decode lost about {{lost}}.",
        remedy=_remedy(case, spilled_bytes(case, spill.bytes_per_token)),
        evidence=(*spill.evidence, *_memory(case)),
        proof_s=spill.counted_s,
    )


def _memory(case: Case) -> tuple[Evidence, ...]:
    gpu = case.gpu_during("decode")
    free = [s.free_bytes for s in gpu if s.free_bytes is not None]
    if not free:
        return ()
    return (Evidence(name="free GPU memory", value=min(free) / 2**20, unit="MiB"),)


def _remedy(case: Case, spilled_bytes: float | None) -> str:
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
    held, most = vram_held(case), float(MAX_HIDDEN_BYTES)
    if held is not None and held.server_bytes is not None and held.hidden_bytes is not None:
        most = held.hidden_bytes + (held.others_bytes or 0)
    much = f"about {(spilled_bytes + FREED_TOO_BYTES) / GIB:.1f} GiB"
    if spilled_bytes > most:
        return f"take a smaller quantisation or model, so that {much} less is needed"
    return f"free {much} of the GPU's memory: close browsers, games and other programs"


def _smaller_context(case: Case) -> str | None:
    """Return the context that fits beside the weights and the others' memory, if it is enough."""
    held, reserved, used = vram_held(case), reserved_tokens(case.server), used_tokens(case)
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
