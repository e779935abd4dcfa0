"""The context is long, so each token reads much more than the weights; the lower rate is normal.

Signal:
The KV cache that each token reads at this context adds at least 20 % to the bytes of the weights.
The rate falls smoothly while an answer grows, and from turn to turn of a conversation.

Not to be confused with:
- `context-oversized`: memory is reserved for a context that is not used.
- `flash-attention-off`: the rate falls more steeply than the bytes explain.
- `vram-spill`: the rate falls in one step, not along a slope.

Remedy:
You need to do nothing. To make long contexts cheaper, shorten the history, quantise the KV cache,
or use a model with fewer KV heads or with sliding-window attention.

Sources:
- Bytes per token = weights + KV cache of the context (roofline of memory-bound decode).
- unslothai/unsloth#11349 (220, 201, 161 and 126 tokens/s at 0, 4k, 16k and 32k tokens).
"""

from slowtok.config.efficiency import constants
from slowtok.detectors.analysis.host_window import decode_s, decode_tps
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Long context"
TRAITS = Traits(phases=("decode",), requires="kv-reads", in_exchange=True)

MIN_ADDED_RATIO = 0.20
"""Heuristic: a fifth more bytes per token is what a user sees in the rate."""

CONFIDENCE = 0.9


def detect(case: Case) -> Finding | None:
    """Explain the rate when reading the context makes a token at least a fifth more expensive."""
    kv = need(case.envelope.kv_bytes, "KV bytes read per token")
    weights = need(case.envelope.read_bytes, "bytes read per token")
    if not weights or kv / weights < MIN_ADDED_RATIO:
        return None
    added_ratio = kv / weights
    share = _share_of_time(case, kv / (weights + kv))
    context = need(case.envelope.context_tokens, "length of the context")
    rate_tps = decode_tps(case)
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=decode_s(case) * share,
        informational=True,
        summary=(
            f"At {context:,} tokens of context each token reads {100 * added_ratio:,.0f} % more "
            f"than the weights, so {rate_tps:.1f} tokens/s here correspond to about "
            f"{rate_tps / (1 - share):.1f} at a short context; that part is normal."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="context", value=context, unit="tokens"),
            Evidence(
                name="KV cache per weights",
                value=100 * added_ratio,
                unit="%",
                limit=100 * MIN_ADDED_RATIO,
            ),
            Evidence(name="KV cache read per token", value=kv / 2**20, unit="MiB"),
        ),
    )


def _share_of_time(case: Case, share_of_bytes: float) -> float:
    """Return the share of a token's time that reading the context takes.

    Where it is known how fast that is read; what each layer costs beside makes it less than the
    share of the bytes. Checked on unslothai/unsloth#11349: from 126.0 at 32k it gives 229 tokens/s
    at none, the bytes alone 245; measured were 220.
    """
    e = case.envelope
    if not (e.kv_bytes and e.expected_tps and e.bandwidth_bytes_per_s and e.efficiency_ratio):
        return share_of_bytes
    if not case.device.gpus:
        return share_of_bytes
    kv_rate = constants().kv_ratio * e.efficiency_ratio * e.bandwidth_bytes_per_s
    return min(e.kv_bytes / kv_rate * e.expected_tps, 0.99)


def _remedy(case: Case) -> str:
    setting = {
        "llama-server": "--cache-type-k q8_0 --cache-type-v q8_0",
        "ollama": "OLLAMA_KV_CACHE_TYPE=q8_0 with OLLAMA_FLASH_ATTENTION=1",
        "vllm": "--kv-cache-dtype fp8",
    }.get(case.server.kind, "8-bit")
    return f"Nothing is broken. Shorten the history or quantise the KV cache ({setting})."
