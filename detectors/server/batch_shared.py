"""The engine decoded other requests together with this one, so each got a part of its speed.

Signal:
On average at least half another request was decoding at the same engine while this one was.
The rate steps when a neighbour starts or ends; the sum over all requests is normal.

Not to be confused with:
- `queued`: the wait before the engine begins.
- `host-contention`, `gpu-shared`: another process, not another request.
- `kv-preemption`: a stream stops for seconds although it was let in.

Remedy:
None is needed: this is what sharing costs, not a fault. One request alone is faster if fewer are
sent at once; a smaller limit of parallel requests makes the others wait instead.

Sources:
- On a GPU the weights are read once for the whole batch, so a stream slows only by the neighbours'
  KV cache (ggml-org/llama.cpp#13627: two streams at 8.5 tokens/s where one has 9.05).
- On a CPU arithmetic is the limit. Measured with llama-server (SmolLM2-135M, Q4_1, two cores): 2, 3
  and 4 streams at 2.0, 2.9 and 3.2 times the time per token of one.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Evidence, Finding, need
from slowtok.detectors.window import decode_s, decode_tps, runs_on_cpu

TITLE = "Shared the engine with other requests"

MIN_OTHERS = 0.5
"""Proposed, no published source: a neighbour for half of the decode."""

CONFIDENCE = 0.9


def detect(case: Case) -> Finding | None:
    """Fire when others decoded beside this request; the cost comes from bytes or from the CPU."""
    others = case.neighbours.decode_mean
    if others < MIN_OTHERS:
        return None
    slowdown = 1 + others if runs_on_cpu(case) else _slowdown_by_bytes(case, 1 + others)
    rate_tps = decode_tps(case)
    lost_s = decode_s(case) * (1 - 1 / slowdown)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"The engine decoded {others:.1f} other requests at the same time on average, so this "
            f"one got {rate_tps:.1f} tokens/s where it would get about {rate_tps * slowdown:.1f} "
            f"alone; sharing cost it about {{lost}}, which is its price and not a fault."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="others decoding", value=others, unit="requests", limit=MIN_OTHERS),
            Evidence(name="most at once", value=case.neighbours.decode_max, unit="requests"),
            Evidence(name="rate when shared", value=rate_tps, unit="tokens/s"),
            Evidence(name="rate alone, estimated", value=rate_tps * slowdown, unit="tokens/s"),
        ),
    )


def _slowdown_by_bytes(case: Case, batch: float) -> float:
    weights = need(case.envelope.read_bytes, "bytes read per token")
    kv = need(case.envelope.kv_bytes, "KV bytes read per token")
    return (weights + batch * kv) / (weights + kv)


def _remedy(case: Case) -> str:
    limit = {
        "llama-server": "start llama-server with --parallel 1",
        "ollama": "set OLLAMA_NUM_PARALLEL=1",
        "vllm": "lower --max-num-seqs",
    }.get(case.server.kind, "lower the engine's limit of parallel requests")
    return (
        f"Nothing is broken. To have one request faster, send fewer at once, or {limit} and let "
        "the others wait."
    )
