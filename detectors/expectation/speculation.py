"""Speculative decoding: whether it was on, and what became of the drafts.

A step gives one token that was not drafted and those of the drafts that the model accepts. So a
rate alone says little there: what a setup gave for other text is no measure (103 and 19 tokens/s on
one healthy server, rkz91/coco#116); the rate without drafts is one.
"""

from dataclasses import dataclass

from slowtok.detectors.case.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Tokens that were drafted and those that the model took."""

    drafted: int
    accepted: int

    @property
    def acceptance_ratio(self) -> float:
        """Return the share that was taken."""
        return self.accepted / self.drafted


def speculates(case: Case) -> bool:
    """Return True if the engine drafts tokens: it was told to, or it did."""
    return bool(case.server.speculative or case.timeline.tokens.drafted)


def drafts_of(case: Case) -> Drafts | None:
    """Return this request's drafts; None where there were none, or the engine does not tell.

    The engine's counters count all requests: they tell where this one was alone, or, as far as
    gauges that are a little late may say, where they counted its prompt and no other.
    """
    tokens, activity = case.timeline.tokens, case.activity
    told = (tokens.drafted, tokens.accepted)
    if None in told and activity is not None and (activity.alone or _counted_only_this(case)):
        told = (activity.drafted, activity.accepted)
    drafted, accepted = told
    if not drafted or accepted is None:
        return None
    return Drafts(drafted=drafted, accepted=min(accepted, drafted))


def _counted_only_this(case: Case) -> bool:
    activity, prompt = case.activity, case.timeline.tokens.prompt
    if activity is None or activity.alone is False or not prompt:
        return False
    return activity.running_max == 1 and activity.prompt_tokens == prompt
