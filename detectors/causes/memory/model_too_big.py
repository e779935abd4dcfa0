"""The model does not fit the memory of the GPU, or the machine's, at the context in use.

Signal:
A part of what each token reads is not on the GPU, and the weights with the KV cache of this
request's context need more memory than an empty GPU has. Or the weights and the KV cache need more
than all memory there is, so that the engine reads weights from the disk again and again.

Not to be confused with:
- `context-oversized`: the model would fit at the context that was used, but more is reserved.
- `vram-held-by-others`: the model would fit if other programs did not hold memory.
- `partial-offload`: the model would fit, but the engine leaves layers in RAM. With a model that is
  too big, `partial-offload` is the symptom, as `cpu-fallback`, `vram-spill` and `storage-paging`
  are.
- A full GPU is normal: engines fill it on purpose (vLLM), or leave 1 GiB (llama.cpp).

Remedy:
Use a smaller quantisation, a smaller model or another GPU. If the model has experts, keep only
experts in RAM. A quantised KV cache helps where little is missing.

Sources:
- ollama/ollama#3301 (Mixtral on 24 GB: 23 of 33 layers, GPU 15 % busy, 15 tokens/s), #4531, #9753
  (53 GB on 24: GPU 2 % busy, ten minutes for an answer).
- ggml-org/llama.cpp#711 (20 GB in 16 GB of RAM: 20 s per token).
"""

from slowtok.detectors.analysis.paging import MIN_READ_BYTES_PER_S, paging_of
from slowtok.detectors.analysis.placement.attribution import Attribution, attribute
from slowtok.detectors.analysis.placement.remedies import (
    experts_in_ram,
    load_again,
    smaller_kv,
    smaller_weights,
    steps,
)
from slowtok.detectors.analysis.placement.where import room_bytes, vram_held
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Missing, Traits, need
from slowtok.detectors.expectation.footprint import GIB, footprint

TITLE = "Model too big for the memory"
TRAITS = Traits(since_load=True)

PAGING_CONFIDENCE = 0.95

KV_HELPS_RATIO = 0.5
"""A smaller KV cache is worth saying if it brings this much of what is missing. Heuristic: where it
brings less, other steps are needed anyway."""


def detect(case: Case) -> Finding | None:
    """Fire when not even empty memory would hold the model at the context in use."""
    if case.server.local is False:
        return None
    return _in_ram(case) or _on_gpu(case)


def _on_gpu(case: Case) -> Finding | None:
    cause = attribute(case, "model-too-big")
    if cause is None:
        return None
    needed, room = cause.reason.needed_for_used_bytes, cause.reason.room_bytes
    least = "at least " if cause.reason.sure else ""
    margin = "," if cause.reason.sure else ", of which the engine leaves some free,"
    return Finding(
        phase="decode",
        confidence=cause.confidence,
        lost_s=max(cause.lost_s, _paging_s(case)),
        summary=(
            f"The model needs {least}{needed / GIB:.1f} GiB at this context and the GPU has "
            f"{room / GIB:.1f} GiB{margin} so {cause.said}"
        ),
        remedy=_remedy(case, cause),
        evidence=(
            Evidence(
                name="memory needed",
                value=needed / GIB,
                unit="GiB",
                limit=cause.reason.limit_bytes / GIB,
            ),
            *cause.evidence,
        ),
    )


def _remedy(case: Case, cause: Attribution) -> str:
    reason = cause.reason
    missing = reason.needed_for_used_bytes - reason.room_bytes
    saved = smaller_kv(case) if _kv_bytes(case) / 2 >= KV_HELPS_RATIO * missing else None
    return steps(
        saved and f"{saved}; then {load_again(case)}",
        experts_in_ram(case, reason),
        smaller_weights(case, reason, reason.needed_for_used_bytes) or "take a smaller model",
        "use a GPU with more memory, or a second one",
    )


def _kv_bytes(case: Case) -> float:
    size = footprint(case.model, case.server)
    return 0.0 if size is None else size.kv_bytes or 0.0


def _in_ram(case: Case) -> Finding | None:
    """Return the finding where RAM and GPUs together are too small, and the disk is read for it."""
    size, ram_bytes = footprint(case.model, case.server), case.device.ram_bytes
    if size is None or ram_bytes is None:
        return None
    uses_gpu = bool(case.device.gpus) and case.server.gpu_layers != 0
    unified = any(gpu.unified_memory for gpu in case.device.gpus or ())
    gpu_bytes = (room_bytes(case, vram_held(case)) or 0.0) if uses_gpu and not unified else 0.0
    needed, room = size.weights_bytes + (size.kv_bytes or 0.0), ram_bytes + gpu_bytes
    if needed <= room:
        return None
    paging = paging_of(case)
    if paging is None:
        return None
    rate_tps = need(case.phases.decode_tps, "decode rate")
    return Finding(
        phase="decode",
        confidence=PAGING_CONFIDENCE,
        lost_s=paging.lost_s,
        summary=(
            f"The model needs {needed / GIB:.1f} GiB and the machine has {room / GIB:.1f} GiB of "
            f"memory, so its weights are read from the disk for each token: {rate_tps:.2f} "
            f"tokens/s, and decode lost about {{lost}}."
        ),
        remedy=(
            f"Take a smaller model or quantisation: a file of at most "
            f"{0.8 * room / GIB:.0f} GiB leaves something for the system; or add memory."
        ),
        evidence=(
            Evidence(name="memory needed", value=needed / GIB, unit="GiB", limit=room / GIB),
            Evidence(
                name="read from disk",
                value=paging.read_bytes_per_s / 1e6,
                unit="MB/s",
                limit=MIN_READ_BYTES_PER_S / 1e6,
            ),
        ),
    )


def _paging_s(case: Case) -> float:
    """Return what reading from the disk cost beside it, 0 where that is not known."""
    try:
        paging = paging_of(case)
    except Missing:
        return 0.0
    return 0.0 if paging is None else paging.lost_s
