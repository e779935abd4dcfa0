"""Estimates the cached part of a prompt: by the engine's word, by counters, or by the clock.

An engine that does not tell had at most the time that it took: prompt tokens that it could not have
computed at the rate expected came from the cache. That says little of a few tokens and much of a
long prompt: one that was cached is over in a tenth of the time. It is a guess where the rate is not
as expected, so it is made only where decode is not slow, and never alone believed.

A counter can be wrong: one of vLLM's stayed at zero while the same prompt took a seventh of the
time that it took at first (vllm-project/vllm-ascend#16639). A count is not believed if the
rest of the prompt was then read far faster than this machine can.
"""

from dataclasses import dataclass

from slowtok.detectors.analysis.phase_loss import is_telling_prefill, judge_decode
from slowtok.detectors.case.case import Case

IMPOSSIBLE_RATIO = 2.0
"""Heuristic: nobody reads a prompt at twice the highest rate expected, or at
twice what nine in ten healthy requests of the last month stayed below."""


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
    counted = activity.cached_tokens if activity is not None and activity.alone else None
    if counted is not None and not _is_impossible(case, counted):
        return Cached(tokens=counted)
    return _by_time(case)


def _is_impossible(case: Case, cached: int) -> bool:
    """Return True if the rest of the prompt cannot have been computed in the time that it took."""
    total, took_s, band = case.timeline.tokens.prompt, case.phases.prefill_s, case.envelope.prefill
    fastest_tps = max(band.high if band else 0.0, case.history.best_prefill_tps or 0.0)
    if not (total and took_s and fastest_tps):
        return False
    return (total - cached) / took_s > IMPOSSIBLE_RATIO * fastest_tps


def _by_time(case: Case) -> Cached | None:
    total, took_s = case.timeline.tokens.prompt, case.phases.prefill_s
    expected_tps = case.envelope.expected_prefill_tps or case.history.best_prefill_tps
    if not (total and took_s and expected_tps) or not is_telling_prefill(case):
        return None
    if judge_decode(case).slow is not False:
        return None  # what holds decode up may hold prefill up, too
    return Cached(tokens=max(total - expected_tps * took_s, 0.0), is_told=False)
