"""The engine preempted a running request for lack of KV cache, and computed it again later.

Signal:
The engine's counter of preemptions moved while this request ran, its KV cache was at least 95 %
full, and this stream stopped for half a second or more, at least once, before it continued.

Not to be confused with:
- If the engine preempted another request, this stream did not stop.
- `batch-shared`: the stream is slower all the time, or pauses while others' prompts are computed.
- `queued`: the wait is over before the engine begins.
- vLLM reserves its KV cache in full, but what is reserved is not yet used.

Remedy:
Make room for more KV cache (a larger share of the GPU, an 8-bit cache), or send fewer or shorter
requests at once.

Sources:
- vllm-project/vllm#18115 (8 requests, KV cache 91 to 96 % full, then generation breaks down).
- vllm-project/vllm#44594 (1,065 preemptions: 99th percentile of gaps 40.6 instead of 17.7 ms).
- vLLM docs, configuration/optimization: preemption computes the request again; what to change.
"""

import statistics
from collections.abc import Iterable
from itertools import pairwise

from slowtok.detectors.analysis.rate_shape import Stall, stalls_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import LLAMA_CPP
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Finding, Traits, need, weigh
from slowtok.detectors.expectation.footprint import kv_bytes

TITLE = "Preempted for lack of KV cache"
TRAITS = Traits(phases=("decode",), in_exchange=True)

FULL_RATIO = 0.95
"""In vllm-project/vllm#18115 it breaks down between 91 and 96 %; readings come once a second."""

ROOMY_RATIO = 0.90
"""Nothing has to be thrown out below. Heuristic: what one long request may fill."""

MAX_OF_GPU_RATIO = 0.95
"""Heuristic: more leaves too little for buffers and a desktop."""


def detect(case: Case) -> Finding | None:
    """Fire when requests were thrown out, the cache was full, and this stream stood still."""
    activity = case.activity
    preemptions = None if activity is None else activity.preemptions
    if preemptions == 0 or (preemptions is None and case.server.kind in LLAMA_CPP):
        return None
    if case.timeline.token_at_s and not stalls_of(case):
        return None
    count = need(preemptions, "preemptions counted by the engine")
    need(case.timeline.token_at_s or None, "arrival times of the tokens")
    full_ratio = None if activity is None else activity.kv_used_max_ratio
    if full_ratio is not None and full_ratio < ROOMY_RATIO:
        return None
    return _finding(case, count, full_ratio, stalls_of(case))


def _finding(
    case: Case, count: int, full_ratio: float | None, stalls: tuple[Stall, ...]
) -> Finding:
    usual_s = _usual_gap_s(case)
    lost_s = sum(stall.gap_s - usual_s for stall in stalls)
    counted = sorted((stall.gap_s - usual_s for stall in stalls), reverse=True)[:count]
    times = f"{len(stalls)} times" if len(stalls) > 1 else "once"
    is_full = full_ratio is not None and full_ratio >= FULL_RATIO
    gauges: tuple[EvidenceKind, ...] = ("gauge",) if is_full else ()
    cache = "" if full_ratio is None else f" ({100 * full_ratio:.0f} % full)"
    return Finding(
        phase="decode",
        confidence=weigh("counter", "inference", *gauges, against=_is_far_from_full(full_ratio)),
        lost_s=lost_s,
        proof_s=sum(counted),  # each time thrown out is one stall at most
        summary=(
            f"The KV cache{cache} had no room left, so the engine preempted requests {count} "
            f"time{'s' if count > 1 else ''} and computed them again; this answer stood still "
            f"{times}, first at token {_token_at(case, stalls[0])}, and lost about {{lost}}."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="preemptions", value=count, unit="times", limit=0),
            Evidence(name="longest stall", value=max(s.gap_s for s in stalls), unit="s"),
            *_fullness(full_ratio),
        ),
    )


def _is_far_from_full(ratio: float | None) -> int:
    return int(ratio is not None and ratio < FULL_RATIO)


def _fullness(ratio: float | None) -> Iterable[Evidence]:
    if ratio is not None:
        yield Evidence(name="KV cache in use", value=100 * ratio, unit="%", limit=100 * FULL_RATIO)


def _usual_gap_s(case: Case) -> float:
    return statistics.median(
        later - earlier for earlier, later in pairwise(case.timeline.token_at_s)
    )


def _token_at(case: Case, stall: Stall) -> int:
    """Return about how many tokens had come when the stall began."""
    times = case.timeline.token_at_s
    per_chunk = (case.timeline.tokens.completion or len(times)) / len(times)
    return round(sum(1 for at_s in times if at_s < stall.end_s) * per_chunk)


def _remedy(case: Case) -> str:
    if case.server.kind != "vllm":
        return "Give the engine more room for its KV cache, or send fewer requests at once."
    steps = [*_more_room(case), *_less_demand(case)]
    return f"Restart vLLM with {', or '.join(steps)}."


def _more_room(case: Case) -> Iterable[str]:
    server = case.server
    ratio, tokens = server.gpu_memory_ratio or 0.9, server.kv_cache_tokens
    if ratio < MAX_OF_GPU_RATIO:
        gained = _tokens_for(case, MAX_OF_GPU_RATIO - ratio)
        more = "" if gained is None else f" (room for about {gained:,} tokens more)"
        yield f"--gpu-memory-utilization {MAX_OF_GPU_RATIO}{more}"
    if not (server.kv_type_k or "").startswith("fp8"):
        twice = "" if tokens is None else f", {2 * tokens:,} instead of {tokens:,} tokens"
        yield f"--kv-cache-dtype fp8 (half the bytes per token{twice})"


def _less_demand(case: Case) -> Iterable[str]:
    running = None if case.activity is None else case.activity.running_max
    tokens = case.server.kv_cache_tokens
    if running is not None and running > 1:
        yield f"--max-num-seqs {running - 1} (others wait instead)"
        if tokens is not None:
            yield f"--max-model-len {tokens // running} ({running} requests of it fit together)"
    else:
        yield "a smaller --max-num-seqs or --max-model-len"


def _tokens_for(case: Case, share: float) -> int | None:
    """Return how many tokens fit into a share of the memory of the GPUs that serve."""
    mine = case.server.gpu_indices
    totals = [g.total_bytes for g in case.device.gpus or () if not mine or g.index in mine]
    per_token = kv_bytes(case.model, case.server, 1_000_000)
    if not per_token or not totals or None in totals:
        return None
    return int(share * sum(total or 0 for total in totals) / (per_token / 1_000_000))
