"""One reply as far as it was read: counts, timings, how it ended.

Dialects write into a `Reply`; the meter reads it once at the end. Values are the engine's own,
in the units of our records (seconds, tokens).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slowtok.detectors.case.case import EngineTimings, Tokens

MAX_NAME_CHARS = 256  # of a model; a longer one is cut
MAX_REASON_CHARS = 64  # of a finish reason


@dataclass(slots=True)
class ChoiceTimings:
    """llama-server's `timings` of one choice; `prompt_tokens` counts the cached ones too."""

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int
    prefill_s: float
    decode_s: float
    drafted: int | None
    accepted: int | None


@dataclass(slots=True)
class Reply:
    """Everything a reply's events told, whatever the dialect; None where it did not tell.

    `choices_seen` counts the answers that showed. `is_thinking` says that the last token was one
    of the model's reasoning, `thought_ratio` what share of a whole reply's text that was.
    `response_id` is how a next request may name it.
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
        """An event is about the answer of this number."""
        self.last_choice = number = count_of(index) or 0
        if number >= self.choices_seen:
            self.choices_seen = number + 1

    def note_thoughts(self, thought: Any, answer: Any) -> None:
        """A whole reply has these two texts; only how they compare in length is kept."""
        if isinstance(thought, str) and thought:
            answer_chars = len(answer) if isinstance(answer, str) else 0
            self.thought_ratio = len(thought) / (len(thought) + answer_chars)

    @property
    def choices(self) -> int:
        """Answers that the counts cover; llama-server's whole reply counts only the first."""
        return len(self.timings) or self.choices_seen

    def tokens(self) -> Tokens:
        """Return the counts; the engine's timings win over the usage object."""
        if not self.timings:
            return Tokens(
                prompt=self.prompt_tokens,
                cached=self.cached_tokens,
                completion=self.completion_tokens,
            )
        told = self._together()
        return Tokens(
            prompt=told.prompt_tokens,
            cached=self.cached_tokens if told.cached_tokens is None else told.cached_tokens,
            completion=told.completion_tokens,
            drafted=told.drafted,
            accepted=told.accepted,
        )

    @property
    def is_timed(self) -> bool:
        """Return True if the engine gave timings of its own."""
        if self.timings or self.prefill_s is not None or self.decode_s is not None:
            return True
        return self.queue_s is not None or self.load_s is not None

    def engine(self) -> EngineTimings | None:
        """Return the engine's own timings, or None where it gave none."""
        if self.timings:
            told = self._together()
            return EngineTimings(prefill_s=told.prefill_s, decode_s=told.decode_s)
        if not self.is_timed:
            return None
        return EngineTimings(
            queue_s=self.queue_s,
            load_s=self.load_s,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
        )

    def _together(self) -> ChoiceTimings:
        """Return the timings of all choices: the prefill is the first one's.

        They share it, and decode side by side.
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
    """Narrow a JSON value to a count: a non-negative whole number, or None.

    The type itself is asked for, here and below: a bool is an int to `isinstance`.
    """
    return value if type(value) is int and value >= 0 else None


def number_of(value: Any) -> float | None:
    """Narrow a JSON value to a non-negative number, or None."""
    kind = type(value)
    return float(value) if (kind is float or kind is int) and value >= 0 else None


def text_of(value: Any, most_chars: int = MAX_NAME_CHARS) -> str | None:
    """Narrow a JSON value to a non-empty string of bounded length, or None."""
    return value[:most_chars] if isinstance(value, str) and value else None


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
