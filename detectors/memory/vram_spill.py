"""More was put on the GPU than it holds, so the driver keeps the rest in RAM without a word.

Signal:
The GPU is busy all the time but draws little power, its memory is full, and 30 to 100 % of what
its PCIe link carries goes into it all through decode: each token fetches what does not fit. GPUs
with layers of one model do so in turns, each for its part of the time.
Without PCIe counters: the GPU is busy, but its memory controller is not. An AMD driver says how
much it moved out (evicted). It may begin within a request, when the KV cache crosses the limit.

Not to be confused with:
- `partial-offload`: the engine keeps layers on the CPU; CPU threads are busy, the link is quiet.
- `multi-gpu-split`: several GPUs exchange results, as much out as in.
- Traffic in prefill: weights kept in RAM are sent over for large batches, by design.
- A full memory alone: vLLM fills it on purpose. Without the variable below, Linux never spills
  on an NVIDIA GPU: CUDA runs out of memory instead.
- GPUs that share the machine's memory have nowhere to spill to.

Remedy:
Ask for less: a smaller or quantised KV cache, fewer layers on the GPU, other programs closed.
Forbid it (Windows: CUDA Sysmem Fallback Policy; llama.cpp: GGML_CUDA_ENABLE_UNIFIED_MEMORY), so
that too much is an error and not slow.

Sources:
- AtomicBot-ai/atomic-llama-cpp-turboquant#77 (Windows, 10 times slower: GPU 100 % busy, its memory
  controller 2 %, CPU idle).
- ollama/ollama#9974 (full utilisation at low power), #7584 (Windows driver from 531 on).
- amdgpu_fdinfo.c in the Linux kernel: amd-evicted-vram.
- `slowtok.detectors.spill`: the arithmetic. No public trace of the PCIe counters is known.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.clocks import decodes_on_gpu, serving
from slowtok.detectors.finding import UNNAMED, Evidence, Finding, need
from slowtok.detectors.gpu_window import settled
from slowtok.detectors.machine import GpuSample
from slowtok.detectors.once import once
from slowtok.detectors.spill import (
    MIN_BUSY_RATIO,
    Spill,
    by_controller,
    by_driver,
    by_link,
    fetches,
    has_room,
    may_spill,
    spilled_bytes,
    together,
)
from slowtok.detectors.spill_remedy import remedy
from slowtok.detectors.window import decode_s

TITLE = "GPU memory spills into RAM"

MIN_DECODE_S = 2.0
"""Utilisation is a mean over up to a second: less decode than this says nothing about it."""

Gpus = dict[int, tuple[GpuSample, ...]]


def detect(case: Case) -> Finding | None:
    """Fire when the GPU has to fetch a part of each token's bytes from RAM."""
    if not decodes_on_gpu(case):
        return None
    spill = spilled(case)
    if spill is None:
        return None
    return _finding(case, spill) if spill.is_spill else UNNAMED


@once
def spilled(case: Case) -> Spill | None:
    """Return what GPUs that decode have to fetch; causes of a split ask for it, too.

    None where it is ruled out; one that is no spill where much is fetched for another reason.
    """
    if may_spill(case) is False:
        return None
    gpus = serving(case, "decode")
    told = by_driver(case, gpus)
    if told is not None:
        return told if told.is_spill else None
    return _inferred(case, gpus)


def _inferred(case: Case, gpus: Gpus) -> Spill | None:
    """Return what utilisation, memory and link say; None where they rule it out."""
    if decode_s(case) < MIN_DECODE_S or has_room(gpus):
        return None
    settled_gpus = {i: settled(found) for i, found in gpus.items()}
    spill = None
    if (
        need(together(case, settled_gpus, lambda s: s.busy_ratio), "GPU utilisation")
        >= MIN_BUSY_RATIO
    ):
        spill = by_link(case, settled_gpus)
        spill = by_controller(case, settled_gpus) if spill is None else spill
    if spill is not None and spill.is_spill:
        return spill
    return Spill() if fetches(case, settled_gpus) else None


def _finding(case: Case, spill: Spill) -> Finding:
    return Finding(
        phase="decode",
        confidence=spill.confidence,
        lost_s=spill.lost_s,
        summary=f"{spill.said}, because GPU memory is full; decode lost about {{lost}}.",
        remedy=remedy(case, spilled_bytes(case, spill.bytes_per_token)),
        evidence=(*spill.evidence, *_memory(case)),
        proof_s=spill.counted_s,
    )


def _memory(case: Case) -> tuple[Evidence, ...]:
    gpu = case.gpu_during("decode")
    free = [s.free_bytes for s in gpu if s.free_bytes is not None]
    if not free:
        return ()
    return (Evidence(name="free GPU memory", value=min(free) / 2**20, unit="MiB"),)
