"""Most of the answer was the model's own thinking, at the rate that is normal.

Signal:
At least half of the generated tokens, and at least 256, were reasoning: the engine counts them, or
they came in fields of their own. This explains a normal request; it makes none slow.

Not to be confused with:
- In a slow decode, each token takes longer than it should.
- A long answer spends most of its tokens on the answer itself.

Remedy:
Ask for less reasoning where the task needs none: set an effort, a budget, or a switch of the chat
template.

Sources:
- OpenAI API (`completion_tokens_details.reasoning_tokens`, `reasoning_effort`).
- llama-server README (`--reasoning-budget`), vLLM docs (reasoning outputs, `enable_thinking`),
  Ollama docs (`think`).
"""

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Evidence, Finding, Traits, need

TITLE = "Long thinking"
TRAITS = Traits(phases=("decode",), in_exchange=True)

MIN_TOKENS = 256
MIN_SHARE = 0.5
MIN_S = 5.0
"""All three are heuristic: less is over before it is felt."""

CONFIDENCE = 0.9


def detect(case: Case) -> Finding | None:
    """Explain a request whose answer was mostly thinking."""
    tokens = case.timeline.tokens
    thought, completion = tokens.reasoning, tokens.completion
    if not thought or not completion or thought < max(MIN_TOKENS, MIN_SHARE * completion):
        return None
    took_s = need(case.phases.decode_s, "decode time") * min(thought / completion, 1.0)
    if took_s < MIN_S:
        return None
    return Finding(
        phase="decode",
        confidence=CONFIDENCE,
        lost_s=took_s,
        informational=True,
        summary=(
            f"{thought:,} of {completion:,} generated tokens were the model's thinking before its "
            f"answer, about {took_s:.1f} s of {case.phases.total_s:.1f} s."
        ),
        remedy=_remedy(case),
        evidence=(
            Evidence(name="reasoning", value=thought, unit="tokens", limit=MIN_TOKENS),
            Evidence(
                name="of what was generated",
                value=100 * thought / completion,
                unit="%",
                limit=100 * MIN_SHARE,
            ),
        ),
    )


def _remedy(case: Case) -> str:
    setting = {
        "llama-server": (
            "--reasoning-budget, or chat_template_kwargs: {enable_thinking: false} in the request"
        ),
        "vllm": "chat_template_kwargs: {enable_thinking: false} in the request",
        "sglang": "chat_template_kwargs: {enable_thinking: false} in the request",
        "ollama": "think: false in the request",
    }.get(case.server.kind, "the model's own setting")
    return (
        "Nothing is broken. Where the task needs no thinking, ask for less: reasoning_effort: low, "
        f"or {setting}."
    )
