"""The prints of recent prompts, to tell what an engine's prompt cache could have kept."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from slowtok.detectors.case import PromptPrefix
from slowtok.proxy.stream.call import PromptPrint, compare
from slowtok.proxy.together import Together

PRINT_AFTER_S = 0.002  # the request is on its way to the engine before its prompt is looked at
LARGE_PROMPT_BYTES = 256 * 1024  # a larger one is printed in a thread
KEEP_PER_MODEL = 8  # about the conversations that llama-server keeps apart by its slots and RAM
KEEP_MODELS = 64
MAX_CHARS = 16_000_000  # of prompts whose prints are kept, about 30 MiB of hashes
MAX_AGE_S = 3600.0


def soon(meanwhile: Together, size_bytes: int, look: Callable[[], object]) -> None:
    """Let a prompt be looked at a moment later, never in the stream's way."""
    if size_bytes > LARGE_PROMPT_BYTES:
        look = partial(asyncio.get_running_loop().run_in_executor, None, look)
    meanwhile.add(look)


class Prompts:
    """Remembers prompts by what served them, as hashes only."""

    def __init__(self) -> None:
        self._prints: OrderedDict[str, deque[tuple[float, PromptPrint]]] = OrderedDict()
        self._chars = 0  # of all of them

    def compare(self, served_by: str, new: PromptPrint, at_s: float) -> PromptPrefix | None:
        """Compare a prompt with the earlier one of its conversation; None for the first."""
        known = tuple(self._prints.get(served_by, ()))  # a long prompt is compared in a thread
        prefixes: list[PromptPrefix] = []  # the newest first
        for at, old in reversed(known):
            if at_s - at <= MAX_AGE_S:
                prefixes.append(compare(new, old, at_s - at, others_since=0))
                if _closeness(prefixes[-1]) == (new.chars, 1.0, new.chars):
                    break  # an older one cannot be closer
        if not prefixes:
            return None
        found = max(prefixes, key=_closeness)  # of two alike the newer one
        since = prefixes[: prefixes.index(found)]
        others = sum(p.common_prefix_chars < found.common_prefix_chars for p in since)
        return replace(found, others_since=others) if others else found

    def remember(self, served_by: str, new: PromptPrint, at_s: float) -> None:
        """Keep the print of a prompt that an engine has served."""
        while self._prints and self._chars > MAX_CHARS - new.chars:
            self._drop_oldest()
        prints = self._prints.setdefault(served_by, deque())
        self._prints.move_to_end(served_by)
        prints.append((at_s, new))
        self._chars += new.chars
        if len(prints) > KEEP_PER_MODEL:
            self._chars -= prints.popleft()[1].chars
        while len(self._prints) > KEEP_MODELS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Let a whole model go, the longest unused one."""
        _, prints = self._prints.popitem(last=False)
        self._chars -= sum(old.chars for _, old in prints)


def _closeness(prefix: PromptPrefix) -> tuple[int, float, int]:
    """Order earlier prompts: a common beginning first; where it is short, by what is shared.

    A beginning that changes with each call is much the same to all conversations.
    """
    common = prefix.common_prefix_chars
    return common if 2 * common >= prefix.chars else 0, prefix.shared_ratio, common
