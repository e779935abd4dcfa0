"""A parsed reply: counts, timings, and how it ended.

Dialects write into a `Reply`; the meter reads it at the end. Values are the engine's own, in the
units of our records (seconds, tokens).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slowtok.detectors.case.case import EngineTimings, Tokens

MAX_NAME_CHARS = 256  # of a model; a longer one is cut
MAX_REASON_CHARS = 64  # of a finish reason


@dataclass(slots=True)
class ChoiceTimings:
    """llama-server's `timings` of one choice; `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    prefill_s: float
    decode_s: float
    drafted: int | None
    accepted: int | None


@dataclass(slots=True)
class Reply:
    """Everything that a reply's events reported, in any dialect; None if not reported.

    `choices_seen` counts the answers that appeared. `is_thinking`: the last token was reasoning.
    `thought_ratio` is the share of reasoning in a whole reply's text. `response_id` is how a later
    request may refer to it.
    """

    model: str | None = None
    finish: str | None = None
    failed: bool = False
    fingerprint: str | None = None
    response_id: str | None = None
    choices_seen: int = 1
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    is_thinking: bool = False
    thought_ratio: float | None = None
    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    last_choice: int = 0
    timings: dict[int, ChoiceTimings] = field(default_factory=dict)
    usage_at_start: Mapping[str, Any] = field(default_factory=dict)

    def note_choice(self, index: Any) -> None:
        """Record that an event belongs to the answer with this number."""
        self.last_choice = number = count_of(index) or 0
        if number >= self.choices_seen:
            self.choices_seen = number + 1

    def note_thoughts(self, thought: Any, answer: Any) -> None:
        """Record the ratio of reasoning to text of a whole reply; the texts are not kept."""
        if isinstance(thought, str) and thought:
            answer_chars = len(answer) if isinstance(answer, str) else 0
            self.thought_ratio = len(thought) / (len(thought) + answer_chars)

    @property
    def choices(self) -> int:
        """Number of answers that the counts cover; only the first in llama-server's whole reply."""
        return len(self.timings) or self.choices_seen

    def tokens(self) -> Tokens:
        """Return the token counts; the engine's timings win over the usage object."""
        if not self.timings:
            return Tokens(
                prompt=self.prompt_tokens,
                cached=self.cached_tokens,
                completion=self.completion_tokens,
            )
        timings = self._together()
        return Tokens(
            prompt=timings.prompt_tokens,
            cached=self.cached_tokens if timings.cached_tokens is None else timings.cached_tokens,
            completion=timings.completion_tokens,
            drafted=timings.drafted,
            accepted=timings.accepted,
        )

    @property
    def is_timed(self) -> bool:
        """Whether the engine reported timings."""
        if self.timings or self.prefill_s is not None or self.decode_s is not None:
            return True
        return self.queue_s is not None or self.load_s is not None

    def engine(self) -> EngineTimings | None:
        """Return the engine's own timings, or None."""
        if self.timings:
            timings = self._together()
            return EngineTimings(prefill_s=timings.prefill_s, decode_s=timings.decode_s)
        if not self.is_timed:
            return None
        return EngineTimings(
            queue_s=self.queue_s,
            load_s=self.load_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )

    def _together(self) -> ChoiceTimings:
        """Return the combined timings of all choices.

        They share one prefill, the first one's, and decode in parallel.
        """
        every = list(self.timings.values())
        if len(every) == 1:
            return every[0]
        return replace(
            every[0],
            completion_tokens=sum([t.completion_tokens for t in every]),
            decode_s=max([t.decode_s for t in every]),
            drafted=_sum([t.drafted for t in every]),
            accepted=_sum([t.accepted for t in every]),
        )


def count_of(value: Any) -> int | None:
    """Return a JSON value as a count: a non-negative whole number, or None.

    The exact type is checked, here and below, because a bool is an int to `isinstance`.
    """
    return value if type(value) is int and value >= 0 else None


def number_of(value: Any) -> float | None:
    """Return a JSON value as a non-negative number, or None."""
    kind = type(value)
    return float(value) if (kind is float or kind is int) and value >= 0 else None


def text_of(value: Any, most_chars: int = MAX_NAME_CHARS) -> str | None:
    """Return a JSON value as a non-empty string of bounded length, or None."""
    return value[:most_chars] if isinstance(value, str) and value else None


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
