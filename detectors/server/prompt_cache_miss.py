"""Prefill computed again what the engine had computed for an earlier request.

Signal:
Most of the prompt is known from an earlier one, but it differs early on, so that everything after
the first difference has to be computed again: the client changed its beginning. What changed is
told by its form: a header, a time, a number, an identifier, the tools or their order, messages
left out or put in. Or the prompt begins like an earlier one, and the engine took next to none of it
from its cache: the engine lost it. Engines that do not tell (Ollama before 0.34) are judged by the
time that they took.

Not to be confused with:
- `slow-prefill`: the same tokens, each one slower.
- `model-load`: after a load the cache is empty, which is named there.
- A chat template or a cache block at the end of the prompt, which are never taken from the cache.

Remedy:
Client: keep the beginning of the prompt the same from call to call; times, counters and session
numbers belong at its end. Claude Code: CLAUDE_CODE_ATTRIBUTION_HEADER=0.
Engine: as many slots as conversations, prompt caching on, enough memory for it.

Sources:
- llama-server README (`cache_n`, `--cache-ram`, `--swa-full`, `id_slot`).
- musistudio/claude-code-router#1220, tale-project/tale#3400 (74-93 s per turn, differs at character
  79), jundot/omlx#2881 (8-12 minutes per turn), ggml-org/llama.cpp#14157 (sliding windows).
"""

from slowtok.detectors.case import Case, PromptPrefix
from slowtok.detectors.finding import Evidence, Finding, need, weigh
from slowtok.detectors.prompt_cached import cached_of
from slowtok.detectors.prompt_change import client_remedy, engine_remedy, what_changed, why_lost

TITLE = "Prompt cache not used"

MIN_PREFIX_RATIO = 0.5
"""Proposed, no published source: less in common is another conversation."""

MAX_CACHED_RATIO = 0.1
"""Proposed, no published source: share of the common beginning that may pass as lost."""

MIN_SHARED_RATIO = 0.5
MIN_MOVED_RATIO = 0.3
"""Proposed, no published source: half of the prompt known, three tenths of it behind a change."""

MIN_LOST_TOKENS = 64
"""No published source: above the blocks that engines cache by (16 in vLLM) and chat templates."""


def detect(case: Case) -> Finding | None:
    """Fire when known text was computed again, and say which side could have avoided it."""
    prompt = case.prompt
    if prompt is None:
        return None  # the first prompt of its kind: there is nothing that it could have missed
    total = need(case.timeline.tokens.prompt, "number of prompt tokens")
    if total < MIN_LOST_TOKENS or _engine_is_new(case, prompt):
        return None
    kept, shared = _kept_ratio(prompt), prompt.shared_ratio
    if shared >= MIN_SHARED_RATIO and shared - kept >= MIN_MOVED_RATIO:
        return _changed_by_client(case, prompt, kept * total, shared * total)
    return None if kept < MIN_PREFIX_RATIO else _lost_by_engine(case, prompt, kept * total)


def _changed_by_client(
    case: Case, prompt: PromptPrefix, kept: float, shared: float
) -> Finding | None:
    """Told by the prompts alone; the cached tokens only say how much of it was lost."""
    cached = cached_of(case)
    lost = shared - (kept if cached is None else cached.tokens)
    if lost < max(MIN_MOVED_RATIO * (case.timeline.tokens.prompt or 0), MIN_LOST_TOKENS):
        return None
    confidence = weigh(
        "counter", "server" if cached is not None and cached.is_told else "inference"
    )
    why = what_changed(prompt)
    return _finding(case, shared - lost, lost, confidence, why, client_remedy(prompt))


def _lost_by_engine(case: Case, prompt: PromptPrefix, kept: float) -> Finding | None:
    found = need(cached_of(case), "prompt tokens taken from the cache")
    cached = found.tokens
    if cached > MAX_CACHED_RATIO * kept or kept - cached < MIN_LOST_TOKENS:
        return None
    same = 100 * _kept_ratio(prompt)
    why = f"the first {same:.0f} % are the same as in an earlier request, but "
    why += why_lost(case, prompt)
    confidence = weigh("server" if found.is_told else "inference", "gauge")
    return _finding(case, cached, kept - cached, confidence, why, engine_remedy(case, prompt))


def _kept_ratio(prompt: PromptPrefix) -> float:
    """Return the share of the prompt that a cache could have kept.

    Some chat templates put the tools before the system's word: what differs in them counts from
    where they begin.
    """
    chars = prompt.common_prefix_chars
    if prompt.difference_role == "tools" and prompt.first_difference is not None:
        chars = min(chars, prompt.first_difference)
    return chars / prompt.chars if prompt.chars else 0.0


def _engine_is_new(case: Case, prompt: PromptPrefix) -> bool:
    """Say whether the engine lost its cache by a restart or a load since the earlier prompt."""
    age_s, loads = prompt.previous_age_s, case.history.loads
    if age_s is None:
        return bool(case.server.slept)
    uptime_s = case.server.uptime_s
    loaded = bool(loads) and loads[0].age_s < age_s
    return loaded or (uptime_s is not None and uptime_s < age_s) or bool(case.server.slept)


def _finding(
    case: Case, reused: float, lost: float, confidence: float, why: str, remedy: str
) -> Finding:
    """Return the finding; `reused` tokens were taken from the cache, or could be at the most."""
    total, prefill_s = case.timeline.tokens.prompt or 0, need(case.phases.prefill_s, "prefill time")
    computed = max(total - reused, 1.0)
    return Finding(
        phase="prefill",
        confidence=confidence,
        lost_s=prefill_s * min(lost / computed, 1.0),
        summary=(
            f"About {lost:.0f} of {total} prompt tokens were computed again although they were "
            f"known: {why}; prefill lost about {{lost}}."
        ),
        remedy=remedy,
        evidence=(
            Evidence(
                name="tokens from the cache" if cached_of(case) is not None else "common beginning",
                value=round(reused),
                unit="tokens",
            ),
            Evidence(
                name="tokens computed again",
                value=round(lost),
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
