"""Most of the request's time went into reading a long prompt, at the rate that is normal.

Signal:
The engine computed 4,096 prompt tokens and more, they took half of the request and 5 s and more,
and prefill was not slow. Where the roles are known, at least half of the prompt are instructions
and tools, and the question is short. This explains a normal request; it makes none slow.

Not to be confused with:
- `slow-prefill`: each token took longer than it should.
- `prompt-cache-miss` and similar causes: the engine had computed the prompt before.
- A long document that you want the model to read is the request itself.

Remedy:
Send fewer tools (an MCP server brings dozens) and shorter instructions, or a smaller prompt for
helper models. The next turns take the prompt from the cache.

Sources:
- magnusoverli/opencode#77 (two minutes for "hello": 20,000 to 25,000 tokens of 41 tools and
  instructions; 3 s without), NousResearch/hermes-agent#61265 (stalls of minutes, prompt sizes).
"""

from slowtok.detectors.analysis.phase_loss import prefill_excess_s
from slowtok.detectors.analysis.prompt_loss import MIN_LOST_TOKENS, prompt_loss
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Long prompt"
TRAITS = Traits(phases=("prefill",), in_exchange=True)

MIN_TOKENS = 4096
MIN_SHARE = 0.5
MIN_S = 5.0
"""All three are heuristic: shorter prompts, and shorter waits, surprise nobody."""

CONFIDENCE = 0.9


def detect(case: Case) -> Finding | None:
    """Explain a request that read for most of its time."""
    tokens = case.timeline.tokens.processed
    if tokens is None or tokens < MIN_TOKENS:
        return None
    took_s, total_s = need(case.phases.prefill_s, "prefill time"), case.phases.total_s
    if took_s < MIN_S or took_s < MIN_SHARE * total_s or prefill_excess_s(case) > 0:
        return None
    if _was_known(case) or _is_the_question(case):
        return None
    return Finding(
        phase="prefill",
        confidence=CONFIDENCE,
        lost_s=took_s,
        informational=True,
        summary=(
            f"{took_s:.1f} of {total_s:.1f} s went into reading {tokens:,} prompt tokens"
            f"{_whose(case)}, at {tokens / took_s:.0f} tokens/s, which is normal here."
        ),
        remedy=(
            "Nothing is broken. Let the client send fewer tools (each MCP server adds its own) and "
            "shorter instructions, or ask a smaller model; the next turns take them from the cache."
        ),
        evidence=(
            Evidence(name="prompt computed", value=tokens, unit="tokens", limit=MIN_TOKENS),
            Evidence(name="prefill", value=took_s, unit="s", limit=MIN_S),
        ),
    )


def _was_known(case: Case) -> bool:
    loss = prompt_loss(case) if case.timeline.tokens.prompt is not None else None
    return loss is not None and max(loss.by_client, loss.by_engine) >= MIN_LOST_TOKENS


def _is_the_question(case: Case) -> bool:
    """Return True if most of the prompt is what the user wants to have read."""
    parts = case.prompt_parts
    if parts is None or not parts.chars:
        return False
    return parts.system_chars + parts.tools_chars < MIN_SHARE * parts.chars


def _whose(case: Case) -> str:
    parts = case.prompt_parts
    if parts is None or not parts.chars:
        return ""
    tools = 100 * parts.tools_chars / parts.chars
    system = 100 * parts.system_chars / parts.chars
    return f" ({tools:.0f} % tools, {system:.0f} % instructions)"
