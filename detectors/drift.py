"""Drift: the same setup gives less than it gave before, though it is still what is expected.

No cause by itself: the rate is inside its band, so nothing is slow. It is worth a word, because a
card that slowly gets hotter, or a new version of an engine, shows like that first.
"""

from slowtok.detectors.case import Case

MIN_DRIFT_RATIO = 0.10
"""Of the rate of the days before. No published source: a tenth is what is worth a word."""

MIN_TOKENS = 32
MIN_DECODE_S = 2.0
"""As for the verdict: what is shorter has no rate to speak of."""

ALONE_SEQUENCES = 0.1
"""Who shared the engine was slower for that. No published source."""


def drift_of(case: Case) -> str | None:
    """Say how much slower this decode was than the median of the weeks before; None where not."""
    rate_tps, before_tps = case.phases.decode_tps, case.history.week_ago_decode_tps
    took_s, tokens = case.phases.decode_s, case.timeline.tokens.completion
    if rate_tps is None or not before_tps or case.neighbours.decode_mean > ALONE_SEQUENCES:
        return None
    if (took_s or 0.0) < MIN_DECODE_S or (tokens or 0) < MIN_TOKENS:
        return None
    drift_ratio, noise_tps = 1 - rate_tps / before_tps, case.baseline.decode_p10_tps
    if drift_ratio < MIN_DRIFT_RATIO or (noise_tps is not None and rate_tps >= noise_tps):
        return None
    return (
        f"{100 * drift_ratio:.0f} % slower than before for the same model at such a context "
        f"({rate_tps:.1f} tokens/s, {before_tps:.1f} the days before)"
    )
