"""Prompt tokens that were computed although an earlier request had computed them.

What the earlier prompt and this one begin with could come from the cache. Where a change stands
early in the prompt, what follows it and is known counts, too: without the change it would have.
"""

from slowtok.detectors.analysis.prompt_loss import least_kept_ratio
from slowtok.detectors.case.case import Case, PromptPrefix

MIN_SHARED_RATIO = 0.5
"""Heuristic: less in common is another conversation."""

BLOCK_TOKENS = 16
"""What prompt caches keep whole (vLLM's block): less is no loss."""


def recomputed_of(case: Case) -> int | None:
    """Return how many there were; None where the engine does not count or nothing went before."""
    prompt, tokens = case.prompt, case.timeline.tokens
    if prompt is None or tokens.prompt is None or tokens.cached is None:
        return None
    again = known_ratio(prompt) * tokens.prompt - tokens.cached
    if prompt.only_grew and least_kept_ratio(prompt) * tokens.prompt < tokens.cached + BLOCK_TOKENS:
        return 0  # characters are no tokens, and the engine may have had all that there was
    return round(again) if again >= BLOCK_TOKENS else 0


def known_ratio(prompt: PromptPrefix) -> float:
    """Return the share of a prompt that an earlier one had: of its beginning, or of all of it.

    Where the conversation only went on, what is new in it may repeat what was said before (an agent
    that calls the same tool again): no cache could have had it.
    """
    begins = prompt.common_prefix_chars / prompt.chars if prompt.chars else 0.0
    if prompt.only_grew or prompt.shared_ratio < MIN_SHARED_RATIO:
        return begins
    return max(begins, prompt.shared_ratio)
