"""The prints of recent prompts, to tell what an engine's prompt cache could have kept."""

from collections import OrderedDict, deque
from dataclasses import replace

from slowtok.detectors.case import PromptPrefix
from slowtok.proxy.stream.call import PromptPrint, compare

KEEP_PER_MODEL = 8  # about the conversations that llama-server keeps apart by its slots and RAM
KEEP_MODELS = 64
MAX_CHARS = 16_000_000  # of prompts whose prints are kept, about 30 MiB of hashes
MAX_AGE_S = 3600.0


class Prompts:
    """Remembers prompts by what served them, as hashes only."""

    def __init__(self) -> None:
        self._prints: OrderedDict[str, deque[tuple[float, PromptPrint]]] = OrderedDict()

    def compare(self, served_by: str, new: PromptPrint, at_s: float) -> PromptPrefix | None:
        """Compare a prompt with the earlier one of its conversation; None for the first."""
        known = tuple(self._prints.get(served_by, ()))  # a long prompt is compared in a thread
        recent = [(at, old) for at, old in known if at_s - at <= MAX_AGE_S]
        prefixes = [compare(new, old, at_s - at) for at, old in recent]
        best = max(range(len(prefixes)), key=lambda i: (_closeness(prefixes[i]), i), default=None)
        if best is None:
            return None
        found = prefixes[best]
        since = prefixes[best + 1 :]
        others = sum(p.common_prefix_chars < found.common_prefix_chars for p in since)
        return replace(found, others_since=others)

    def remember(self, served_by: str, new: PromptPrint, at_s: float) -> None:
        """Keep the print of a prompt that an engine has served."""
        self._drop_oldest(MAX_CHARS - new.chars)
        self._prints.setdefault(served_by, deque(maxlen=KEEP_PER_MODEL)).append((at_s, new))
        self._prints.move_to_end(served_by)
        while len(self._prints) > KEEP_MODELS:
            self._prints.popitem(last=False)

    def _drop_oldest(self, most_chars: int) -> None:
        """Let whole models go, the longest unused first, until the rest is small enough."""
        kept = sum(old.chars for prints in self._prints.values() for _, old in prints)
        while self._prints and kept > most_chars:
            _, prints = self._prints.popitem(last=False)
            kept -= sum(old.chars for _, old in prints)


def _closeness(prefix: PromptPrefix) -> tuple[int, float, int]:
    """Order earlier prompts: a common beginning first; where it is short, by what is shared.

    A beginning that changes with each call is much the same to all conversations.
    """
    common = prefix.common_prefix_chars
    return common if 2 * common >= prefix.chars else 0, prefix.shared_ratio, common
