"""More context is reserved than fits the GPU, though the context that was used would have fitted.

Signal:
A part of what each token reads is not on the GPU. The weights and the KV cache of the reserved
context need more memory than an empty GPU has; with the KV cache of the context that was used they
would fit. The engine takes the memory for all of the context when it loads the model, however short
the prompts are.

Not to be confused with:
- `model-too-big`: the model would not fit at the context in use either.
- `long-context`: the context is long and used, which makes each token a little slower.
- A GPU that vLLM fills is normal: vLLM fills what is left with KV cache, and keeps the weights
  there.

Remedy:
Set a context of the size that you use, or a KV cache in 8 bits, which takes half the memory and
needs flash attention. Use fewer parallel slots where each has a context of its own. Then load the
model again.

Sources:
- Bitshank-2338/clicky-windows#18 (8 GB, 65,536 tokens: 35 % in RAM; at 8,192 all on the GPU).
- ollama/ollama#7198 (40,000 tokens: 33 % in RAM; 128,000: all of it), #11815, #10874.
"""

from slowtok.detectors.analysis.placement.attribution import Attribution, attribute
from slowtok.detectors.analysis.placement.remedies import (
    load_again,
    smaller_context,
    smaller_kv,
    smaller_weights,
    steps,
)
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits
from slowtok.detectors.expectation.footprint import GIB, reserved_tokens

TITLE = "More context reserved than fits the GPU"
TRAITS = Traits(requires="gpu-use", since_load=True)


def detect(case: Case) -> Finding | None:
    """Fire when the context that nobody used pushed a part of the model off the GPU."""
    cause = attribute(case, "context-oversized")
    if cause is None:
        return None
    reason, tokens = cause.reason, reserved_tokens(case.server) or 0
    used = "fewer" if reason.used_tokens is None else f"{reason.used_tokens:,}"
    return Finding(
        phase="decode",
        confidence=cause.confidence,
        lost_s=cause.lost_s,
        summary=(
            f"Memory is reserved for {tokens:,} tokens of context, and {used} were used; with that "
            f"reserve the model needs {reason.needed_bytes / GIB:.1f} GiB where the GPU has "
            f"{reason.room_bytes / GIB:.1f}, so {cause.said}"
        ),
        remedy=_remedy(case, cause),
        evidence=(
            Evidence(
                name="memory needed",
                value=reason.needed_bytes / GIB,
                unit="GiB",
                limit=reason.limit_bytes / GIB,
            ),
            Evidence(
                name="context reserved",
                value=tokens,
                unit="tokens",
                limit=reason.used_tokens,
            ),
            *cause.evidence,
        ),
    )


def _remedy(case: Case, cause: Attribution) -> str:
    context = smaller_context(case, cause.reason)
    step = "reserve less context" if context is None else context
    restarts = case.server.kind in {"llama-server", "vllm"} and context is not None
    keep = smaller_weights(case, cause.reason, cause.reason.needed_bytes)
    return steps(
        step if restarts else f"{step}, then {load_again(case)}",
        smaller_kv(case),
        fewer_slots(case),
        keep and f"to keep that context, {keep}",
    )


def fewer_slots(case: Case) -> str | None:
    """Return how to reserve the context of fewer slots, where each has one of its own."""
    slots, tokens = case.server.slots or 1, case.server.context_tokens
    if slots <= 1 or tokens is None or (reserved_tokens(case.server) or 0) <= tokens:
        return None
    how = {"llama-server": "-np 1", "ollama": "OLLAMA_NUM_PARALLEL=1"}.get(case.server.kind)
    return how and f"serve one request at a time ({how} instead of {slots} slots)"
