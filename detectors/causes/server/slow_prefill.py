"""Each prompt token took far longer to compute than this GPU needs.

Signal:
At least 256 prompt tokens were computed, over 2 s or more, at a rate per token below what the GPU
should give for this model at this depth, or below half of what this setup gave before. The cause is
sure where a setting explains it: small micro-batches, or weights in RAM that the GPU has to fetch
for each batch. It is likely where this setup did better before, or where the rate is not even half
of the least that is expected. Nearer to that, the loss stays unexplained.

Not to be confused with:
- `prompt-cache-miss`: the engine computes too many tokens, each one at the usual rate.
- `flash-attention-off`, `slow-kernel`, `power-cap`, `thermal-throttle`: these are causes of their
  own.
- `queued`, `model-load`: the wait is before prefill.
- A short prompt takes one pass over the weights, however short it is.
- A neighbour's prefill at the same time takes a part of the speed.

Remedy:
Set larger micro-batches (`--ubatch-size`), put more layers on the GPU, or send a shorter prompt.

Sources:
- Each micro-batch reads the weights once; those in RAM come over PCIe (ggml-org/llama.cpp#6083).
- nomic-ai/gpt4all#2605 (Tesla P40: 512 at once are 3 times as fast as 128).
- oobabooga/textgen#7309 (experts in RAM: 175 tokens/s with 512, 535 with 2,048).
- ggml-org/llama.cpp#26391 (RTX 3080, experts in RAM, 512 at once: 266 tokens/s).
"""

from dataclasses import dataclass

from slowtok.detectors.analysis.phase_loss import (
    MIN_PREFILL_S,
    MIN_PREFILL_TOKENS,
    OWN_PREFILL_RATIO,
    prefill_excess_s,
)
from slowtok.detectors.analysis.placement.cost import link_bytes_per_s
from slowtok.detectors.analysis.placement.where import TOLD, off_gpu
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import (
    Evidence,
    EvidenceKind,
    Finding,
    Missing,
    Traits,
    need,
    weigh,
)

TITLE = "Slow prefill"
TRAITS = Traits(phases=("prefill",), in_exchange=True, persistent=True)

USUAL_MICRO_BATCH = 512
LARGE_MICRO_BATCH = 2048  # what llama.cpp's users take where weights are in RAM; 512 is its default
SMALL_BATCH_EXPONENT = 0.79
"""A quarter of the batch at a third of the rate (P40, gpt4all#2605): ln 3 / ln 4."""

LINK_RATIO = 0.5
"""Of a link's practical rate, at worst: #26391 gives about 13 of 25 GB/s. No other source."""

FAR_RATIO = 0.5
"""Of the least expected, which is half of what is usual. Heuristic."""
NO_REASON_REMEDY = "Look for other work on the GPU, and compare with another build of the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    """Something that was set, and what it costs a prefill at least and at most."""

    said: str
    remedy: str
    least_s: float
    most_s: float
    kind: EvidenceKind
    evidence: Evidence


def detect(case: Case) -> Finding | None:
    """Fire when tokens were computed slowly; how sure depends on what explains it."""
    if (case.timeline.tokens.processed or 0) < MIN_PREFILL_TOKENS:
        return None
    if need(case.phases.prefill_s, "prefill time") < MIN_PREFILL_S:
        return None
    expected_tps = case.envelope.expected_prefill_tps or case.history.best_prefill_tps
    need(expected_tps, "prefill rate expected of this GPU")
    excess_s = prefill_excess_s(case)
    if excess_s <= 0:
        return None
    reasons = [found for found in (_small_batches(case), _fetched(case)) if found is not None]
    return _finding(case, excess_s, max(reasons, key=lambda r: r.most_s, default=None))


def _small_batches(case: Case) -> _Reason | None:
    """Fewer tokens at once: the weights are read more often, and kernels reach less."""
    server, envelope = case.server, case.envelope
    sizes = [size for size in (server.micro_batch_tokens, server.batch_tokens) if size]
    size = min(sizes, default=USUAL_MICRO_BATCH)
    if size >= USUAL_MICRO_BATCH:
        return None
    took_s, rate = case.phases.prefill_s or 0.0, envelope.bandwidth_bytes_per_s
    passes = (case.timeline.tokens.processed or 0) * (1 / size - 1 / USUAL_MICRO_BATCH)
    smaller = "--ubatch-size" if size == server.micro_batch_tokens else "--batch-size"
    name = "--max-num-batched-tokens" if server.kind == "vllm" else smaller
    return _Reason(
        said=f"the engine computes only {size:,} tokens at once ({name})",
        remedy=f"Start the engine with {name} {USUAL_MICRO_BATCH} or more",
        least_s=passes * (envelope.read_bytes or 0.0) / rate if rate else 0.0,
        most_s=took_s * (1 - (size / USUAL_MICRO_BATCH) ** SMALL_BATCH_EXPONENT),
        kind="server",
        evidence=Evidence(name="at once", value=size, unit="tokens", limit=USUAL_MICRO_BATCH),
    )


def _fetched(case: Case) -> _Reason | None:
    """Weights in RAM cross the link once for each micro-batch."""
    try:
        placed = off_gpu(case)
    except Missing:
        return None
    if placed is None or not case.model.file_bytes:
        return None
    held = placed.weights_ratio * case.model.file_bytes
    size = case.server.micro_batch_tokens or case.server.batch_tokens or USUAL_MICRO_BATCH
    passes = -(-(case.timeline.tokens.processed or 0) // size)
    copied_s = passes * held / link_bytes_per_s(case)
    return _Reason(
        said=(
            f"{held / 2**30:.1f} GiB of the weights are in RAM and are fetched for each {size:,} "
            "tokens"
        ),
        remedy=_more_at_once(case, size),
        least_s=copied_s,
        most_s=copied_s / LINK_RATIO,
        kind="server" if placed.source in TOLD else "gauge",
        evidence=Evidence(name="weights in RAM", value=held / 2**30, unit="GiB"),
    )


def _more_at_once(case: Case, size: int) -> str:
    fit = "Put more of the model on the GPU: a smaller quantisation or context makes room"
    setting = {
        "llama-server": f"--batch-size {LARGE_MICRO_BATCH} --ubatch-size {LARGE_MICRO_BATCH}",
        "ollama": f"num_batch {LARGE_MICRO_BATCH} in the Modelfile or the request's options",
    }.get(case.server.kind)
    less = LARGE_MICRO_BATCH // size
    if setting is None or less < 2:
        return fit
    return f"Set {setting}, so that they are fetched {less} times less often. {fit}"


def _finding(case: Case, excess_s: float, reason: _Reason | None) -> Finding:
    rate_tps, took_s = case.phases.prefill_tps or 0.0, case.phases.prefill_s or 0.0
    usual_tps = rate_tps * took_s / max(took_s - excess_s, 0.01 * took_s)
    why, lost_s = "slowtok sees no reason for it", excess_s
    was_better = rate_tps <= OWN_PREFILL_RATIO * (case.history.best_prefill_tps or 0.0)
    is_far = (band := case.envelope.prefill) is not None and rate_tps <= FAR_RATIO * band.low
    kinds: list[EvidenceKind] = ["gauge"] * (was_better + is_far)
    if reason is not None:
        why, kinds = reason.said, [reason.kind]
        lost_s = min(max(excess_s, reason.least_s), reason.most_s, took_s)
    return Finding(
        phase="prefill",
        confidence=weigh("inference", *kinds),
        lost_s=lost_s,
        summary=(
            f"Prefill computed {case.timeline.tokens.processed:,} prompt tokens at {rate_tps:,.0f} "
            f"tokens/s, where about {usual_tps:,.0f} would be usual: {why}; that lost about "
            "{lost}."
        ),
        remedy=f"{NO_REASON_REMEDY if reason is None else reason.remedy}.",
        evidence=(
            Evidence(name="prefill rate", value=rate_tps, unit="tokens/s", limit=usual_tps),
            Evidence(name="prefill", value=took_s, unit="s", limit=MIN_PREFILL_S),
            *([] if reason is None else [reason.evidence]),
        ),
    )
