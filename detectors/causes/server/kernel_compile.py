"""The first request of a shape waited while the engine compiled code for it.

Signal:
The engine had served no request since its start, or none with a prompt of about this length, and
its prompt took clearly longer than this setup gave before, or than it can take: by a second and
more, and by half of the time. In that time the GPU did little, or a thread of the server was busy.
Where kernels are tuned the GPU is busy, too, so slowtok then asks for a loss of three quarters. The
next request of the same shape is fast again.

Not to be confused with:
- `model-load`: the weights were being read, which is over when the engine answers. One that loads
  on demand answers before that, so it has to tell when it began to read the prompt.
- `slow-prefill`: later requests of that shape are slow, too.
- `queued`, `batch-shared`: other requests were there.
- Caches and clocks that warm up take less than a second.

Remedy:
Send a request of each shape right after the start, or use the engine's own warm-up, and keep the
cache of compiled code on a disk that stays.

Sources:
- vllm-project/vllm#39790 (1,537 ms, then 58), vllm-project/vllm#49903 (new shapes, too),
  syv-ai/qwen38-27b-rtx3090#155 (25 s, then 11), tenstorrent/tt-inference-server#4179 (9.9 s, then
  0.94), ggml-org/llama.cpp#27147 (the first image).
- vLLM docs (VLLM_CACHE_ROOT, compilation cache), CUDA programming guide (CUDA_CACHE_PATH).
"""

from slowtok.detectors.analysis.gpu.gpu_window import median
from slowtok.detectors.analysis.phase_loss import MIN_LOAD_S, is_error
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import COMPILING, LOADED_BEFORE_ANSWERING
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Finding, Traits, need, weigh

TITLE = "Kernels were being compiled"
TRAITS = Traits(phases=("prefill",), in_exchange=True)

MIN_LOST_S = 1.0
MIN_LOST_RATIO = 0.5
"""Caches that warm up cost tenths of a second; the reports lose half of the time and more. Both
heuristic."""

IDLE_GPU_RATIO = 0.5
BUSY_CORES = 0.5
"""Compilers run on the CPU, while the GPU waits. Heuristic."""

TUNING_LOST_RATIO = 0.75
TUNING_ALL_LOST_RATIO = 0.9
"""Kernels that are tuned keep the GPU busy: then it takes a loss of so much against the setup's own
past, or of the second against what any such GPU gives, on an engine that tunes. Heuristic both."""

USUAL_BATCH = 512

NEW_S = 900.0
"""An engine that began so long ago has served its first requests. Heuristic."""


def detect(case: Case) -> Finding | None:
    """Fire when a first request took what no later one takes."""
    first = _first(case)
    if first is None or is_error(case) or case.server.slept or _has_company(case):
        return None
    if (case.phases.load_s or 0.0) >= MIN_LOAD_S:
        return None
    tokens = case.timeline.tokens.processed
    expected_tps = _expected_tps(case)
    if tokens is None or expected_tps is None:
        return None
    if case.phases.source == "stream" and case.server.kind not in LOADED_BEFORE_ANSWERING:
        need(case.phases.load_s, "whether the model was loaded before the request")
    took_s = need(case.phases.prefill_s, "prefill time")
    lost_s = took_s - tokens / expected_tps
    if lost_s < max(MIN_LOST_S, MIN_LOST_RATIO * took_s):
        return None
    seen = _seen(case, may_tune=_may_tune(case, lost_s / took_s))
    if seen is None or (not seen and case.server.kind not in COMPILING):
        return None
    return Finding(
        phase="prefill",
        confidence=weigh("inference", "inference", "gauge", *seen),
        lost_s=lost_s,
        summary=(
            f"The prompt took {took_s:.1f} s where {tokens / expected_tps:.1f} s would be usual. "
            f"It was {first}, and the engine was compiling code or tuning kernels, which cost "
            f"about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="prefill", value=took_s, unit="s", limit=tokens / expected_tps),
            Evidence(
                name="requests served before",
                value=case.history.served_before or 0,
                unit="requests",
            ),
        ),
    )


def _first(case: Case) -> str | None:
    """Return in which way the request was the first of its kind; None where it was not."""
    served, alike = case.history.served_before, case.history.served_alike
    if served is None:
        began, uptime_s = case.server.started_unix_s, case.server.uptime_s
        age_s = None if began is None else case.timeline.started_unix_s - began
        known_s = uptime_s if age_s is None else age_s
        is_new = known_s is not None and known_s <= NEW_S
        return "the first request since the engine was started" if is_new else None
    if served and not alike and case.server.kind in COMPILING:
        return "the first with a prompt of about this length since the engine was started"
    return None


def _has_company(case: Case) -> bool:
    neighbours, activity = case.neighbours, case.activity
    if neighbours.in_flight_at_send or neighbours.prefill.others_reading_ratio:
        return True
    return activity is not None and activity.alone is False


def _expected_tps(case: Case) -> float | None:
    """Return the least rate that a prompt is usually read at here."""
    best, band = case.history.best_prefill_tps, case.envelope.prefill
    usual = case.baseline.prefill_tps or (0.5 * best if best else None)
    return usual or (band.low if band is not None else None)


def _may_tune(case: Case, lost_ratio: float) -> bool:
    """Return True if a busy GPU may have been tuning: nothing else costs a first prompt as much."""
    batch = case.server.batch_tokens
    if case.server.kind not in COMPILING or (batch is not None and batch < USUAL_BATCH):
        return False
    has_past = bool(case.history.best_prefill_tps)
    return lost_ratio >= (TUNING_LOST_RATIO if has_past else TUNING_ALL_LOST_RATIO)


def _seen(case: Case, *, may_tune: bool) -> tuple[EvidenceKind, ...] | None:
    """Return what showed a compiler at work; None where something contradicts it."""
    found: list[EvidenceKind] = []
    busy = median(case.gpu_during("prefill"), lambda sample: sample.busy_ratio)
    if busy is not None:
        if busy > IDLE_GPU_RATIO and not may_tune:
            return None
        found += ["gauge"] * (busy <= IDLE_GPU_RATIO)
    cores = [s.server_cpu_cores for s in case.host_during("prefill")]
    known = [c for c in cores if c is not None]
    if known and case.device.gpus:
        if max(known) < BUSY_CORES:
            return None
        found.append("gauge")
    return tuple(found)


def _remedy(case: Case) -> str:
    if case.server.kind == "vllm":
        return (
            "Send a short and a long request after each start, before users come; keep vLLM's "
            "cache of compiled code (VLLM_CACHE_ROOT, ~/.cache/vllm) on a disk that stays, and "
            "take a current version, which warms up more of its kernels."
        )
    return (
        "Send a request of each kind after each start, before users come, and keep the cache of "
        "compiled code (CUDA_CACHE_PATH, ~/.nv) on a disk that stays."
    )
