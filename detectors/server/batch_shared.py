"""The engine decoded other requests together with this one, so each got a part of its speed.

Signal:
On average at least half another request was decoding at the same engine while this one was, or
this one stood still for half a second and more while another was there: its prompt was computed in
between. The rate steps when a neighbour starts or ends; the sum over all requests is normal.

Not to be confused with:
- `queued`: the wait before the engine begins.
- `host-contention`, `gpu-shared`: another process, not another request.
- `kv-preemption`: a stream stops for seconds because it was thrown out.

Remedy:
None is needed: this is what sharing costs, not a fault. One request alone is faster if fewer are
sent at once; a smaller limit of parallel requests makes the others wait instead. Pauses while
others' prompts are computed get shorter with smaller batches.

Sources:
- On a GPU the weights are read once for the whole batch, so a stream slows only by the neighbours'
  KV cache (ggml-org/llama.cpp#13627: two streams at 8.5 tokens/s where one has 9.05).
- On a CPU arithmetic is the limit. Measured with llama-server (SmolLM2-135M, Q4_1, two cores): 2, 3
  and 4 streams at 2.0, 2.9 and 3.2 times the time per token of one.
- ggml-org/llama.cpp#29175: another's prompt stops a stream for 8 s at `-b 4096`, 31 s at 16384.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import UNNAMED, Evidence, Finding, need
from slowtok.detectors.phases import judge_decode
from slowtok.detectors.shape import stalls_of
from slowtok.detectors.window import decode_s, decode_tps, runs_on_cpu

TITLE = "Shared the engine with other requests"

MIN_OTHERS = 0.5
"""Proposed, no published source: a neighbour for half of the decode."""

CONFIDENCE = 0.9
PAUSED_CONFIDENCE = 0.8
"""That the pauses were another's prompt follows from its being there at the time."""

MAX_PAUSE_RATIO = 1.2
"""Pauses last no longer than the neighbours stayed, but for how well that is known."""

BATCH_FLAG = {"llama-server": "--batch-size", "vllm": "--max-num-batched-tokens"}
ALONE = {
    "llama-server": "start llama-server with --parallel 1",
    "ollama": "set OLLAMA_NUM_PARALLEL=1",
    "vllm": "lower --max-num-seqs",
}


def detect(case: Case) -> Finding | None:
    """Fire when others decoded beside this request; the cost comes from bytes or from the CPU."""
    others, pauses_s = case.neighbours.decode_mean, _pauses_s(case)
    if others < MIN_OTHERS and not pauses_s:
        return None
    slowdown = 1 + others if runs_on_cpu(case) else _slowdown_by_bytes(case, 1 + others)
    rate_tps, took_s = decode_tps(case), decode_s(case)
    if not judge_decode(case).slow:
        return UNNAMED
    return _finding(case, slowdown, pauses_s, rate_tps=rate_tps, took_s=took_s)


def _finding(
    case: Case, slowdown: float, pauses_s: float, *, rate_tps: float, took_s: float
) -> Finding:
    others = case.neighbours.decode_mean
    lost_s = pauses_s + (took_s - pauses_s) * (1 - 1 / slowdown)
    alone_tps = rate_tps * took_s / max(took_s - lost_s, 0.01 * took_s)
    paused = f" and paused for {pauses_s:.1f} s while their prompts were computed" * bool(pauses_s)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE if others >= MIN_OTHERS else PAUSED_CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine decoded {others:.1f} other requests at the same time on average{paused}, "
            f"so this one got {rate_tps:.1f} tokens/s where it would get about {alone_tps:.1f} "
            "alone; sharing cost it about {lost}, which is its price and not a fault."
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


def _pauses_s(case: Case) -> float:
    """Return how long the stream stood still for others' prompts; 0 where they cannot have been."""
    took_s, preempted = case.phases.decode_s, case.activity and case.activity.preemptions
    if not case.neighbours.decode_max or not took_s or preempted:
        return 0.0
    pauses_s = sum(stall.gap_s for stall in stalls_of(case))
    were_there_s = case.neighbours.decode_mean * took_s
    return pauses_s if pauses_s <= MAX_PAUSE_RATIO * were_there_s else 0.0


def _slowdown_by_bytes(case: Case, batch: float) -> float:
    weights = need(case.envelope.read_bytes, "bytes read per token")
    kv = need(case.envelope.kv_bytes, "KV bytes read per token")
    return (weights + batch * kv) / (weights + kv)


def _remedy(case: Case, *, paused: bool) -> str:
    flag, now = BATCH_FLAG.get(case.server.kind), case.server.batch_tokens
    if paused and flag and now:
        return (
            f"Nothing is broken. For shorter pauses start the engine with {flag} {now // 4} "
            f"({now} now), or send long prompts when nobody else waits."
        )
    limit = ALONE.get(case.server.kind, "lower the engine's limit of parallel requests")
    return (
        f"Nothing is broken. To have one request faster, send fewer at once, or {limit} and let "
        "the others wait."
    )
