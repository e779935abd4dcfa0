"""Comparison with earlier prompts: what the prompt cache could have kept, and a length estimate.

Fingerprints of recent prompts show the common prefix. No engine reports a prompt's length during
prefill, only its characters are known at once; earlier requests of the model give tokens per
character and the prefill rate.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from slowtok.detectors.case.case import Case, PromptPrefix, Repeat
from slowtok.proxy.relay.exchange import Exchange, PromptEstimate
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint, common_chars, compare

KEEP_PER_MODEL = 32  # conversations that may come in between; heuristic
COMPARE = 8  # of them are compared piece by piece where none begins alike: a millisecond each
SHORT_CHARS = 256  # some 64 tokens: what is lost of them costs nothing. Heuristic
KEEP_MODELS = 64
MAX_CHARS = 16_000_000  # of prompts whose fingerprints are kept, about 30 MiB of hashes
MAX_AGE_S = 3600.0
KEEP_TRIES = 256
MAX_PAUSE_S = 600.0
"""Longest pause before a retry; OpenAI's SDK waits half a second to 8 s."""

SIZES_PER_MODEL = 8  # the newest: what a client sends changes. Heuristic.
MIN_TOKENS = 256
"""As many as a prefill must have to be judged (detectors/analysis/phase_loss.py). Shorter prompts
give no rate, and are mostly the chat template, which has no characters here."""


class _Tries(NamedTuple):
    """Attempts with one prompt that were cut short, the last of them at `at_s`."""

    at_s: float
    repeat: Repeat


class Prompts:
    """Remembers prompts per engine and model, as hashes only."""

    def __init__(self) -> None:
        self._fingerprints: OrderedDict[str, deque[tuple[float, PromptFingerprint]]] = OrderedDict()
        self._chars = 0  # of all of them
        self._tries: BoundedMap[tuple[str, int], _Tries] = BoundedMap(KEEP_TRIES)

    def compare(self, served_by: str, new: PromptFingerprint, at_s: float) -> PromptPrefix | None:
        """Compare a prompt with the previous one of its conversation; None for the first."""
        fingerprints = self._fingerprints.get(served_by, ())
        known = [(at, old) for at, old in reversed(fingerprints) if at_s - at <= MAX_AGE_S]
        if not known:
            return None
        commons = [common_chars(new, old) for _, old in known]  # the newest first
        number, prefix = self._closest(new, known, commons, at_s)
        others = [common for common in commons[:number] if common < prefix.common_prefix_chars]
        if not others:
            return prefix
        return replace(prefix, others_since=len(others), others_common_chars=max(others))

    def _closest(
        self,
        new: PromptFingerprint,
        known: Sequence[tuple[float, PromptFingerprint]],
        commons: Sequence[int],
        at_s: float,
    ) -> tuple[int, PromptPrefix]:
        """Return index and comparison of the earlier prompt of the same conversation.

        A long common prefix identifies it, of two equal ones the newer. Only if the prefix is short
        are contents compared (not for a short prompt, which is not worth it).
        """
        longest = max(commons)
        if 2 * longest >= new.chars or new.chars < SHORT_CHARS:
            number = commons.index(longest)
            at, old = known[number]
            return number, compare(new, old, at_s - at, others_since=0)
        prefixes = [compare(new, old, at_s - at, others_since=0) for at, old in known[:COMPARE]]
        closest = max(prefixes, key=_closeness)
        return prefixes.index(closest), closest

    def repeat(self, served_by: str, new: PromptFingerprint, at_s: float) -> Repeat | None:
        """Return the earlier attempts with this very prompt that were cut short; else None."""
        tries = self._tries.get(_try_of(served_by, new))
        if tries is None or at_s - tries.at_s > MAX_PAUSE_S:
            return None
        return tries.repeat

    def note_cut(
        self, served_by: str, cut: PromptFingerprint, at_s: float, spent_s: float, ended: str
    ) -> None:
        """Store that a request with this prompt was cut short, and how long it had taken."""
        key, earlier = _try_of(served_by, cut), self.repeat(served_by, cut, at_s - spent_s)
        count, earlier_s = (0, 0.0) if earlier is None else (earlier.count, earlier.spent_s)
        repeat = Repeat(count=count + 1, spent_s=earlier_s + spent_s, ended=ended)
        self._tries[key] = _Tries(at_s, repeat)

    def remember(self, served_by: str, new: PromptFingerprint, at_s: float) -> None:
        """Store the fingerprint of a prompt that an engine has served."""
        self._tries.pop(_try_of(served_by, new), None)
        while self._fingerprints and self._chars > MAX_CHARS - new.chars:
            self._drop_oldest()
        fingerprints = self._fingerprints.setdefault(served_by, deque())
        self._fingerprints.move_to_end(served_by)
        fingerprints.append((at_s, new))
        self._chars += new.chars
        if len(fingerprints) > KEEP_PER_MODEL:
            self._chars -= fingerprints.popleft()[1].chars
        while len(self._fingerprints) > KEEP_MODELS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop all prompts of the engine and model that was not used for longest."""
        _, fingerprints = self._fingerprints.popitem(last=False)
        self._chars -= sum(old.chars for _, old in fingerprints)


def _try_of(served_by: str, prompt: PromptFingerprint) -> tuple[str, int]:
    return served_by, hash((prompt.chars, prompt.blocks))


def _closeness(prefix: PromptPrefix) -> tuple[int, float, int]:
    """Return the sort key of earlier prompts: common prefix; if that is short, shared content.

    A short prefix that changes with each call is much the same in all conversations.
    """
    common = prefix.common_prefix_chars
    return common if 2 * common >= prefix.chars else 0, prefix.shared_ratio, common


class PromptEstimates:
    """Learns tokens per character and prefill rate from finished requests."""

    def __init__(self) -> None:
        self._sizes: BoundedMap[str, deque[tuple[int, int]]] = BoundedMap(KEEP_MODELS)
        self._tps: BoundedMap[str, float] = BoundedMap(KEEP_MODELS)

    def learn(self, served_by: str, exchange: Exchange, case: Case) -> None:
        """Store what a finished request shows about its model."""
        tokens = case.timeline.tokens
        if (tokens.prompt or 0) < MIN_TOKENS:
            return
        if exchange.prompt is not None:
            sizes = self._sizes.get(served_by) or deque(maxlen=SIZES_PER_MODEL)
            sizes.append((exchange.prompt.chars, tokens.prompt or 0))
            self._sizes[served_by] = sizes
        if case.phases.prefill_tps and (tokens.processed or 0) >= MIN_TOKENS:
            self._tps[served_by] = case.phases.prefill_tps

    def estimate(self, served_by: str, exchange: Exchange) -> PromptEstimate | None:
        """Return the estimated length of a prompt; None before a request of its model has ended."""
        sizes = self._sizes.get(served_by)
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
