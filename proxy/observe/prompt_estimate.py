"""About how many tokens a prompt has, and how long they take: from earlier requests of its model.

No engine tells a prompt's length while it reads it. What is known at once are its characters; how
many of them made a token, and how many tokens a second were read, earlier requests have shown.
"""

from collections import deque

from slowtok.detectors.case.case import Case
from slowtok.proxy.relay.exchange import Exchange, PromptEstimate
from slowtok.proxy.runtime.bounded_map import BoundedMap

KEEP_PER_MODEL = 8  # the newest: what a client sends changes. Heuristic.
KEEP_MODELS = 64
MIN_TOKENS = 256
"""As many as a prefill must have to be judged (detectors/analysis/phase_loss.py). Shorter prompts
give no rate, and are mostly the chat template, which has no characters here."""


class PromptEstimates:
    """Learns from finished requests."""

    def __init__(self) -> None:
        self._sizes: BoundedMap[str, deque[tuple[int, int]]] = BoundedMap(KEEP_MODELS)
        self._tps: BoundedMap[str, float] = BoundedMap(KEEP_MODELS)

    def learn(self, served_by: str, exchange: Exchange, case: Case) -> None:
        """Keep what a finished request showed of its model."""
        tokens = case.timeline.tokens
        if (tokens.prompt or 0) < MIN_TOKENS:
            return
        if exchange.prompt is not None:
            sizes = self._sizes.get(served_by) or deque(maxlen=KEEP_PER_MODEL)
            sizes.append((exchange.prompt.chars, tokens.prompt or 0))
            self._sizes[served_by] = sizes
        if case.phases.prefill_tps and (tokens.processed or 0) >= MIN_TOKENS:
            self._tps[served_by] = case.phases.prefill_tps

    def guess(self, served_by: str, exchange: Exchange) -> PromptEstimate | None:
        """Return what is to be expected of a prompt; None before a request of its model ended."""
        sizes = tuple(self._sizes.get(served_by, ()))  # of a long one in a thread
        if not sizes or exchange.prompt is None:
            return None
        per_char = sum(tokens for _, tokens in sizes) / sum(chars for chars, _ in sizes)
        tokens = round(exchange.prompt.chars * per_char)
        same = exchange.prefix.common_prefix_chars if exchange.prefix else 0
        return PromptEstimate(
            tokens=tokens,
            new_tokens=max(tokens - round(same * per_char), 0),
            tps=self._tps.get(served_by),
        )
