"""The engine worked on other requests together with this one, so each got a part of its speed.

Signal:
On average at least half another request was decoding at the same engine while this one was, by the
engine's own slots or gauges (or as the proxy counted). Or this request stood still for half a
second and more while another was there, because the engine computed the other's prompt in between.
Or a slot was free, and the engine read the prompts of others before this one's, or together with
it. The rate steps when a neighbour starts or ends; the sum over all requests is normal.

Not to be confused with:
- `queued`: no slot was free.
- `host-contention`, `gpu-shared`: another process took the time, not another request.
- `kv-preemption`: the stream stops for seconds because it was preempted.

Remedy:
You need to do nothing: this is what sharing costs, not a fault. To have one request faster, send
fewer at once; a smaller limit of parallel requests makes the others wait instead. To make the waits
and pauses for others' prompts shorter, use smaller batches; to end them, give long prompts an
engine of their own.

Sources:
- On a GPU the weights are read once for the whole batch, so a stream slows only by the neighbours'
  KV cache (ggml-org/llama.cpp#13627: two streams at 8.5 tokens/s where one has 9.05), and by the
  experts that they use and it does not: at most the union of what each one chooses.
- On a CPU arithmetic is the limit. Measured with llama-server (SmolLM2-135M, Q4_1, two cores): 2, 3
  and 4 streams at 2.0, 2.9 and 3.2 times the time per token of one.
- ggml-org/llama.cpp#29175: another's prompt stops a stream for 8 s at `-b 4096`, 31 s at 16384.
"""

from slowtok.detectors.analysis.host_window import decode_s, decode_tps, runs_on_cpu
from slowtok.detectors.analysis.phase_loss import (
    MIN_WAIT_RATIO,
    MIN_WAIT_S,
    OWN_PREFILL_RATIO,
    judge_decode,
    slowdown,
)
from slowtok.detectors.analysis.rate_shape import stalls_of
from slowtok.detectors.analysis.waiting import MIN_TURN_WAIT_S, others_are_seen, wait_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import UNNAMED, Evidence, Finding, Traits, need
from slowtok.detectors.expectation.reads import expert_bytes, expert_union_ratio

TITLE = "Shared the engine with other requests"
TRAITS = Traits(phases=("queue", "prefill", "decode"), in_exchange=True)

MIN_OTHERS = 0.5
"""Heuristic: a neighbour for half of the decode."""

CONFIDENCE = 0.9
PAUSED_CONFIDENCE = 0.8
"""That the pauses were another's prompt follows from its being there at the time."""

MAX_PAUSE_RATIO = 1.2
"""Pauses last no longer than the neighbours stayed, but for how well that is known."""

ALONE = {
    "llama-server": "start llama-server with --parallel 1",
    "ollama": "set OLLAMA_NUM_PARALLEL=1",
    "vllm": "lower --max-num-seqs",
    "sglang": "lower --max-running-requests",
}

# What reading the prompts of others cost a request that had a slot: a wait, or a shared prefill.
#
# An engine fills each step with the tokens of prompts; a long one leaves no room for those that
# come after it, and what fits in is computed together and takes as long as all of it.
#
# Sources: ggml-org/llama.cpp#29175 (another's prompt holds others up by as long as a batch of
# `-b` tokens takes); vLLM docs, configuration/optimization (chunked prefill,
# `--max-num-batched-tokens`).

PROMPTS_CONFIDENCE = 0.9
ESTIMATED_CONFIDENCE = 0.7
"""The engine's gauges show that it let nobody in, and not how long this request waited."""

SMALLEST_BATCH = 256
"""A smaller one costs prefill more than it gives others. Heuristic."""

PIECES = 4
"""A quarter of the batch is a quarter of the wait for each of its steps."""


def detect(case: Case) -> Finding | None:
    """Fire when others' prompts held this request up, or others decoded beside it."""
    prompts = others_prompts(case)
    if prompts is not None and _leads(case, prompts):
        return prompts
    others, pauses_s = case.neighbours.decode_mean, _pauses_s(case)
    if others < MIN_OTHERS and not pauses_s:
        if prompts is not None:
            return UNNAMED
        need(others_are_seen(case) or None, "other requests at the engine")
        return None
    slowed = _slowdown(case, 1 + others)
    rate_tps, took_s = decode_tps(case), decode_s(case)
    if not judge_decode(case).slow:
        return UNNAMED
    return _finding(case, slowed, pauses_s, rate_tps=rate_tps, took_s=took_s)


def _leads(case: Case, prompts: Finding) -> bool:
    """Return True if others' prompts cost what is felt, and more than decode lost."""
    is_felt = prompts.lost_s >= max(MIN_WAIT_S, MIN_WAIT_RATIO * case.phases.total_s)
    return is_felt and prompts.lost_s >= judge_decode(case).lost_s


def _finding(
    case: Case, slowed: float, pauses_s: float, *, rate_tps: float, took_s: float
) -> Finding:
    others = case.neighbours.decode_mean
    lost_s = pauses_s + (took_s - pauses_s) * (1 - 1 / slowed)
    alone_tps = rate_tps * took_s / max(took_s - lost_s, 0.01 * took_s)
    paused = f" and paused for {pauses_s:.1f} s while their prompts were computed" * bool(pauses_s)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE if others >= MIN_OTHERS else PAUSED_CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine decoded {_others(others)} at the same time on average{paused}, "
            f"so this one got {rate_tps:.1f} tokens/s where it would get about {alone_tps:.1f} "
            "alone; sharing cost it about {lost}, which is normal and not a fault."
        ),
        remedy=_remedy(case, paused=bool(pauses_s)),
        evidence=(
            Evidence(name="others decoding", value=others, unit="requests", limit=MIN_OTHERS),
            Evidence(name="most at once", value=case.neighbours.decode_max, unit="requests"),
            Evidence(name="pauses", value=pauses_s, unit="s")
            if pauses_s
            else Evidence(name="rate when shared", value=rate_tps, unit="tokens/s"),
            Evidence(name="rate alone, estimated", value=alone_tps, unit="tokens/s"),
        ),
    )


def _others(count: float) -> str:
    said = f"{count:.1f}".removesuffix(".0")
    return f"{said} other request{'' if said == '1' else 's'}"


def _pauses_s(case: Case) -> float:
    """Return how long the stream stood still for others' prompts; 0 where they cannot have been."""
    took_s, preempted = case.phases.decode_s, case.activity and case.activity.preemptions
    if not case.neighbours.decode_max or not took_s or preempted:
        return 0.0
    pauses_s = sum(stall.gap_s for stall in stalls_of(case))
    were_there_s = case.neighbours.decode_mean * took_s
    return pauses_s if pauses_s <= MAX_PAUSE_RATIO * were_there_s else 0.0


def _slowdown(case: Case, batch: float) -> float:
    """Return how many times longer a token takes in a batch of so many.

    Between what the KV cache of the others takes for certain and what their experts may take at
    most, it is what happened.
    """
    if runs_on_cpu(case):
        return batch
    weights = need(case.envelope.read_bytes, "bytes read per token")
    kv = need(case.envelope.kv_bytes, "KV bytes read per token")
    alone_bytes, together_bytes = weights + kv, weights + batch * kv
    most_bytes = together_bytes + _further_experts_bytes(case, batch)
    happened = slowdown(case, judge_decode(case).lost_s, "decode")
    return min(max(happened, together_bytes / alone_bytes), most_bytes / alone_bytes)


def _further_experts_bytes(case: Case, batch: float) -> float:
    """Return what a step reads of experts that this request alone would not use."""
    total, used = case.model.experts or 0, case.model.experts_used or 0
    alone_ratio = expert_union_ratio(total, used, 1.0)
    return expert_bytes(case.model) * (expert_union_ratio(total, used, batch) / alone_ratio - 1)


def _remedy(case: Case, *, paused: bool) -> str:
    if paused and (smaller := _smaller_batches(case)) and case.server.batch_tokens:
        return (
            f"Nothing is broken. For shorter pauses, {smaller}, or send long prompts when nobody "
            "else waits."
        )
    limit = ALONE.get(case.server.kind, "lower the engine's limit of parallel requests")
    return (
        f"Nothing is broken. To have one request faster, send fewer at once, or {limit} and let "
        "the others wait."
    )


def others_prompts(case: Case) -> Finding | None:
    """Return what others' prompts cost before or while a request's own was read, the larger."""
    found = [finding for finding in (_wait(case), _shared(case)) if finding is not None]
    return max(found, key=lambda finding: finding.lost_s, default=None)


def _wait(case: Case) -> Finding | None:
    wait = wait_of(case)
    if wait is None or not wait.is_for_prompts:
        return None
    lost_s = min(wait.waited_s, wait.reading_s)
    return Finding(
        phase="queue",
        confidence=ESTIMATED_CONFIDENCE if case.phases.queue_estimated else PROMPTS_CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine had room for this request and read {_whose(case)} first, so it waited "
            "about {lost} before the engine began its own prompt; that is what sharing an engine "
            "costs, not a fault."
        ),
        remedy=_prompts_remedy(case),
        evidence=(
            Evidence(
                name="wait with a slot free", value=wait.waited_s, unit="s", limit=MIN_TURN_WAIT_S
            ),
            Evidence(name="others' prompts read", value=wait.reading_s, unit="s"),
        ),
    )


def _shared(case: Case) -> Finding | None:
    """Return what a prefill took longer than alone, as far as others' prompts were read with it."""
    rate_tps, took_s = case.phases.prefill_tps, case.phases.prefill_s
    low_tps, alone_tps = _alone(case)
    if rate_tps is None or took_s is None or rate_tps >= low_tps:
        return None
    at_engine = case.neighbours.prefill
    beside_s = max(at_engine.reading_s, (at_engine.others_reading_ratio or 0.0) * took_s)
    lost_s = min(took_s * (1 - rate_tps / alone_tps), beside_s)
    if lost_s < MIN_TURN_WAIT_S:
        return None
    return Finding(
        phase="prefill",
        confidence=PROMPTS_CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine read {_whose(case, begun=True)} together with this one, which got "
            f"{rate_tps:,.0f} tokens/s where it would get about {alone_tps:,.0f} alone; sharing "
            "cost it about {lost}, which is normal and not a fault."
        ),
        remedy=_prompts_remedy(case),
        evidence=(
            Evidence(name="prefill rate", value=rate_tps, unit="tokens/s", limit=low_tps),
            Evidence(name="others' prompts read beside it", value=beside_s, unit="s"),
        ),
    )


def _alone(case: Case) -> tuple[float, float]:
    """Return the rate below which a prefill was held up, and the one expected of it alone.

    By its own past where there is one; 0 where nothing is known.
    """
    best_tps, band = case.history.best_prefill_tps, case.envelope.prefill
    if best_tps is not None:
        return OWN_PREFILL_RATIO * best_tps, best_tps
    if band is None:
        return 0.0, 0.0
    return band.low, case.envelope.expected_prefill_tps or band.low


def _whose(case: Case, *, begun: bool = False) -> str:
    at_engine = case.neighbours.prefill if begun else case.neighbours.waiting
    if at_engine.reading_id is None:
        return "the prompt of a request that did not come through this proxy"
    return f"the prompt of request {at_engine.reading_id}"


def _prompts_remedy(case: Case) -> str:
    """Return what keeps others' prompts from holding up a request."""
    apart = "give long prompts an engine of their own, or send them when nobody else waits"
    if (smaller := _smaller_batches(case)) is None:
        return f"Nothing is broken. For shorter waits, {apart}."
    return f"Nothing is broken. For shorter waits, {smaller}, {apart}."


def _smaller_batches(case: Case) -> str | None:
    """Return the option by which the engine reads prompts in smaller pieces, where it has one."""
    now = case.server.batch_tokens
    flag = {
        "llama-server": "--batch-size",
        "vllm": "--max-num-batched-tokens",
        "sglang": "--chunked-prefill-size",
    }.get(case.server.kind)
    if flag is None or (now is not None and now <= SMALLEST_BATCH):
        return None
    chunked = " and --enable-chunked-prefill" if case.server.kind == "vllm" else ""
    if now is None:
        return f"start the engine with a smaller {flag}{chunked}"
    pieces = max(now // PIECES, SMALLEST_BATCH)
    return f"start the engine with {flag} {pieces}{chunked} ({now} now)"
