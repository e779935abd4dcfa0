"""How much of a prompt the engine took from its cache: by its word, by counters, or by the clock.

An engine that does not tell had at most the time that it took: prompt tokens that it could not have
computed at the rate expected came from the cache. That says little of a few tokens and much of a
long prompt: one that was cached is over in a tenth of the time. It is a guess where the rate is not
as expected, so it is made only where decode is not slow, and never alone believed.
"""

from dataclasses import dataclass

from slowtok.detectors.case import Case
from slowtok.detectors.phases import is_telling_prefill, judge_decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Prompt tokens from the cache; `is_told` where the engine counted them."""

    tokens: float
    is_told: bool = True


def cached_of(case: Case) -> Cached | None:
    """Return the cached tokens, None where nothing tells.

    Counters count where this request was alone.
    """
    activity, told = case.activity, case.timeline.tokens.cached
    if case.server.prefix_caching is False:
        return Cached(tokens=0)
    if told is not None:
        return Cached(tokens=told)
    if activity is not None and activity.alone and activity.cached_tokens is not None:
        return Cached(tokens=activity.cached_tokens)
    return _by_time(case)


def _by_time(case: Case) -> Cached | None:
    total, took_s = case.timeline.tokens.prompt, case.phases.prefill_s
    expected_tps = case.envelope.expected_prefill_tps or case.history.best_prefill_tps
    if not (total and took_s and expected_tps) or not is_telling_prefill(case):
        return None
    if judge_decode(case).slow is not False:
        return None  # what holds decode up may hold prefill up, too
    return Cached(tokens=max(total - expected_tps * took_s, 0.0), is_told=False)
