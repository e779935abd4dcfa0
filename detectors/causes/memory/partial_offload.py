"""A part of the model is in RAM, because of the engine's options or its own choice.

Signal:
The engine's report, its command line or the memory that it holds shows that a part of what each
token reads is not on the GPU. The CPU's threads are busy and the GPU waits for them, so the GPU is
busy for about its own share of each token's time. The loss is constant from the first token on, and
the same for each request.

Not to be confused with:
- `cpu-fallback`: nothing at all is on the GPU.
- `vram-spill`: the GPU fetches the rest itself, so it is busy all the time, and the CPU rests.
- `host-bound`: one thread is busy, and all of the model is on the GPU.
- `model-too-big`, `context-oversized`, `vram-held-by-others` and `reload-degradation` are the
  reasons for it. Where slowtok names one of them, `partial-offload` is the symptom.
- vLLM keeps everything on GPUs by default (`--cpu-offload-gb` changes that).
- Low clocks and a low performance state are the effect of a GPU that waits.

Remedy:
Put all layers on the GPU where they fit; where they do not, keep only experts in RAM.

Sources:
- ollama/ollama#3301 (23 of 33 layers: GPU 15 % busy, 15 tokens/s), #4531 (42 % / 58 %: GPU 0 % in
  the answer), #4668, #11676, #5821 (31 of 33 layers while 6 GiB stay free).
- ggml-org/llama.cpp#17880 (12 GB, 33 of 170 W, P3, 39 %: low clocks that follow from it).
"""

from slowtok.detectors.analysis.host_window import CPU_DECODES_CORES
from slowtok.detectors.analysis.placement.cost import (
    WAITING_RATIO,
    confidence,
    evidence_of,
    gpu_busy_ratio,
    is_fetched,
    lost_s,
    said_cost,
    said_share,
)
from slowtok.detectors.analysis.placement.reasons import Reason, reason_for
from slowtok.detectors.analysis.placement.remedies import (
    engine_name,
    experts_in_ram,
    fewest_expert_layers,
    more_layers,
    smaller_kv,
    steps,
)
from slowtok.detectors.analysis.placement.where import (
    NOTHING_RATIO,
    Placement,
    off_gpu,
    placement,
    server_cores,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Missing, Traits, need
from slowtok.detectors.expectation.footprint import FIT_MARGIN_BYTES, GIB

TITLE = "Part of the model in RAM"
TRAITS = Traits(requires="gpu-use", since_load=True)


def detect(case: Case) -> Finding | None:
    """Fire when a part that costs time, but not all, is read by the CPU."""
    placed = off_gpu(case)
    if placed is None and _is_doubtful(case):
        raise Missing("GPU memory of the server")
    if placed is None or placed.cpu_ratio >= NOTHING_RATIO:
        return None
    if placed.source == "size":
        need(server_cores(case), "CPU time of the server")
    if is_fetched(case, placed):
        return None
    reason = _reason(case, placed)
    return Finding(
        phase="decode",
        confidence=confidence(case, placed),
        lost_s=lost_s(case, placed),
        summary=f"{_how(case, placed, reason)}, so {said_share(placed)}: {said_cost(case)}",
        remedy=_remedy(case, placed, reason),
        evidence=(
            *evidence_of(case, placed),
            Evidence(
                name="decode rate",
                value=need(case.phases.decode_tps, "decode rate"),
                unit="tokens/s",
                limit=case.envelope.expected_tps,
            ),
        ),
    )


def _is_doubtful(case: Case) -> bool:
    """Return True if only a command line puts all on the GPU, which waits for a busy CPU."""
    if not case.device.gpus or case.server.gpu_layers == 0 or case.server.local is False:
        return False
    placed, busy = placement(case), gpu_busy_ratio(case)
    if placed.source != "command line" or placed.over_link:
        return False
    unseen = placed.vram is None or placed.vram.server_bytes is None
    waits = busy is not None and busy < WAITING_RATIO
    return unseen and waits and (server_cores(case) or 0.0) > CPU_DECODES_CORES


def _reason(case: Case, placed: Placement) -> Reason | None:
    """Return why, where that can be told: its own detector says what is missing for it."""
    try:
        return reason_for(case, placed)
    except Missing:
        return None


def _how(case: Case, placed: Placement, reason: Reason | None) -> str:
    server, name = case.server, engine_name(case.server)
    fits = _fits(reason)
    if server.cpu_offload_bytes:
        return f"{name} was told to keep {server.cpu_offload_bytes / GIB:.0f} GiB in RAM{fits}"
    if server.kv_on_gpu is False and placed.weights_ratio == 0:
        return f"{name} was told to keep the KV cache in RAM{fits} (--no-kv-offload)"
    if server.cpu_moe_layers:
        every = server.cpu_moe_layers >= (case.model.layers or 0)
        told = "all experts" if every else f"the experts of {server.cpu_moe_layers} layers"
        return f"{name} was told to keep {told} in RAM{fits} (--n-cpu-moe or --cpu-moe)"
    layers, whole = server.gpu_layers or 0, (case.model.layers or 0) + 1
    if server.kind == "llama-server" and 0 < layers < whole:
        return f"{name} was told to put {layers} of {whole} layers on the GPU{fits} (-ngl {layers})"
    missing = "" if placed.missing_bytes is None else f" {placed.missing_bytes / GIB:.1f} GiB of"
    return f"{name} left{missing} the model off the GPU when it was loaded{fits}"


def _fits(reason: Reason | None) -> str:
    if reason is None or reason.root != "told":
        return ""
    if reason.needed_bytes > reason.room_bytes:
        room = reason.room_bytes - reason.others_bytes
        return f", more of it than the GPU's {room / GIB:.1f} GiB make necessary"
    surely = reason.needed_bytes + FIT_MARGIN_BYTES <= reason.room_bytes
    return f" although all of it {'would' if surely else 'might'} fit"


def _remedy(case: Case, placed: Placement, reason: Reason | None) -> str:
    server = case.server
    if server.cpu_offload_bytes:
        return steps("start vLLM without --cpu-offload-gb", smaller_kv(case))
    if server.kv_on_gpu is False and placed.weights_ratio == 0:
        return steps("start llama-server without --no-kv-offload", smaller_kv(case))
    if reason is not None and reason.root == "told" and server.cpu_moe_layers:
        fewest = fewest_expert_layers(case, reason)
        if fewest and fewest < server.cpu_moe_layers:
            return steps(f"start llama-server with --n-cpu-moe {fewest}")
        return steps("start llama-server without --n-cpu-moe and --cpu-moe")
    if reason is not None and reason.root != "told":
        return steps(f"first remove what keeps it off the GPU ({reason.root})")
    experts = None if reason is None else experts_in_ram(case, reason)
    return steps(more_layers(case, placed), experts)
