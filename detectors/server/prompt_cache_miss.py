"""Prefill computed again what the engine had computed for an earlier request.

Signal:
The prompt begins like an earlier one, but the engine took next to none of it from its cache: the
engine lost it. Or most of the prompt is known, but it differs early on, so that everything after
the first difference has to be computed again: the client changed its beginning.

Not to be confused with:
- `slow-prefill`: the same tokens, each one slower.
- `model-load`: after a load the cache is empty, which is named there.
- A chat template or a cache block at the end of the prompt, which are never taken from the cache.

Remedy:
Client: keep the beginning of the prompt the same from call to call; times, counters and session
numbers belong at its end. Claude Code: CLAUDE_CODE_ATTRIBUTION_HEADER=0.
Engine: as many slots as conversations, prompt caching on, enough memory for it.

Sources:
- llama-server README (`cache_n`, `--cache-ram`, `--cache-reuse`, `id_slot`).
- musistudio/claude-code-router#1220, tale-project/tale#3400 (74-93 s per turn, differs at character
  79), jundot/omlx#2881 (8-12 minutes per turn).
"""

from slowtok.detectors.case import Case, PromptPrefix
from slowtok.detectors.finding import Evidence, Finding, need

TITLE = "Prompt cache not used"

MIN_PREFIX_RATIO = 0.5
"""Proposed, no published source: less in common is another conversation."""

MAX_CACHED_RATIO = 0.1
"""Proposed, no published source: share of the common beginning that may pass as lost."""

MIN_SHARED_RATIO = 0.5
MIN_MOVED_RATIO = 0.3
"""Proposed, no published source: at least half of the prompt known, a prefix of under a fifth."""

MIN_LOST_TOKENS = 64
"""No published source: above the blocks that engines cache by (16 in vLLM) and chat templates."""

CONFIDENCE = 0.95


def detect(case: Case) -> Finding | None:
    """Fire when known text was computed again, and say which side could have avoided it."""
    if case.prompt is None:
        return None  # the first prompt of its kind: there is nothing that it could have missed
    prompt = case.prompt
    total = need(case.timeline.tokens.prompt, "number of prompt tokens")
    if total < MIN_LOST_TOKENS or max(prompt.shared_ratio, _prefix_ratio(prompt)) < min(
        MIN_PREFIX_RATIO, MIN_SHARED_RATIO
    ):
        return None
    cached = need(case.timeline.tokens.cached, "prompt tokens taken from the cache")
    kept = _prefix_ratio(prompt)
    if _engine_is_new(case, prompt):
        return None
    if kept >= MIN_PREFIX_RATIO and cached <= MAX_CACHED_RATIO * kept * total:
        return _finding(case, kept * total - cached, _lost_by_engine(prompt), _engine_remedy(case))
    if (
        prompt.shared_ratio >= MIN_SHARED_RATIO
        and prompt.shared_ratio - kept >= MIN_MOVED_RATIO
        and cached <= (kept + MAX_CACHED_RATIO) * total
    ):
        return _finding(
            case, prompt.shared_ratio * total - cached, _changed_by_client(prompt), CLIENT_REMEDY
        )
    return None


CLIENT_REMEDY = (
    "Keep the beginning of the prompt identical from call to call: move times, counters, session "
    "numbers and anything else that changes to its end (Claude Code: set "
    "CLAUDE_CODE_ATTRIBUTION_HEADER=0)."
)


def _prefix_ratio(prompt: PromptPrefix) -> float:
    return prompt.common_prefix_chars / prompt.chars if prompt.chars else 0.0


def _engine_is_new(case: Case, prompt: PromptPrefix) -> bool:
    """Say whether the engine lost its cache by a restart or a load since the earlier prompt."""
    uptime_s, age_s = case.server.uptime_s, prompt.previous_age_s
    restarted = uptime_s is not None and age_s is not None and uptime_s < age_s
    return restarted or bool(case.server.slept)


def _finding(case: Case, lost_tokens: float, why: str, remedy: str) -> Finding | None:
    if lost_tokens < MIN_LOST_TOKENS:
        return None
    tokens, prefill_s = case.timeline.tokens, need(case.phases.prefill_s, "prefill time")
    processed = max(tokens.processed or 0, 1)
    lost_s = prefill_s * min(lost_tokens / processed, 1.0)
    return Finding(
        phase="prefill",
        confidence=CONFIDENCE,
        lost_s=lost_s,
        summary=(
            f"About {lost_tokens:.0f} of {tokens.prompt} prompt tokens were computed again "
            f"although they were known: {why}; prefill lost about {{lost}}."
        ),
        remedy=remedy,
        evidence=(
            Evidence(name="tokens from the cache", value=tokens.cached or 0, unit="tokens"),
            Evidence(
                name="tokens computed again",
                value=round(lost_tokens),
                unit="tokens",
                limit=MIN_LOST_TOKENS,
            ),
            Evidence(name="prefill", value=prefill_s, unit="s"),
            *_place(case.prompt),
        ),
    )


def _place(prompt: PromptPrefix | None) -> tuple[Evidence, ...]:
    """Return where the prompt first differs from the earlier one; nothing where it does not."""
    if prompt is None or prompt.first_difference is None or prompt.difference_message is None:
        return ()
    unit = f"characters into message {prompt.difference_message + 1}"
    return (Evidence(name="first difference", value=prompt.first_difference, unit=unit),)


def _lost_by_engine(prompt: PromptPrefix) -> str:
    return (
        f"the first {100 * _prefix_ratio(prompt):.0f} % are the same as in an earlier request, but "
        "the engine no longer had them in its cache"
    )


def _changed_by_client(prompt: PromptPrefix) -> str:
    place = "early on"
    if prompt.first_difference is not None and prompt.difference_message is not None:
        near = "at" if prompt.granularity_chars == 1 else "near"
        role = f", role {prompt.difference_role}" if prompt.difference_role else ""
        place = (
            f"{near} character {prompt.first_difference} of message "
            f"{prompt.difference_message + 1}{role}"
        )
    return f"the prompt first differs from an earlier one {place}, and a cache ends there"


def _engine_remedy(case: Case) -> str:
    return {
        "llama-server": (
            "Give llama-server a slot for each conversation (--parallel) or pin it (id_slot in the "
            "request), and keep its prompt cache on (--cache-ram 8192, no --no-cache-prompt)."
        ),
        "vllm": (
            "Keep prefix caching on (--enable-prefix-caching) and leave it more KV cache: raise "
            "--gpu-memory-utilization or lower --max-model-len."
        ),
        "ollama": "Set OLLAMA_NUM_PARALLEL to the number of conversations that run side by side.",
    }.get(case.server.kind, "Keep the engine's prompt cache on, with a slot for each conversation.")
