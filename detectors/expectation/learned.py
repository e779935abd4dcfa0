"""Learned refinement: how far a setup's own healthy past narrows its band, and what it never does.

The gate is graded: 0.70 of the setup's own healthy median after one request, 0.75 after three, 0.85
after five. Source: on 196 pairs of published single-stream rates of one setup, 0.70 of one healthy
row gives no false alarm and finds a slowdown of 1.5 in 88 %, 0.75 gives 1.0 % and 96 %. The other
thresholds are heuristic.
"""

from dataclasses import replace

from slowtok.detectors.case.case import Baseline, Envelope, Range
from slowtok.detectors.case.finding import number

REFINE_AFTER = 5  # healthy requests from which the setup's own noise is known, too
GRADES = ((REFINE_AFTER, 0.85), (3, 0.75), (1, 0.70))
"""From so many healthy requests on, the share of their median that is the low edge."""

REFINE_HIGH_RATIO = 1.25
MIN_LEARNED_RATIO = 0.70  # however noisy the setup, and of peers' median
NOISE_RATIO = 0.95  # below what one healthy request in ten gave is noise no more


def refine(envelope: Envelope, baseline: Baseline) -> Envelope:
    """Narrow the band around what this setup gave before, from its first healthy request on.

    The low edge only rises (see `learned_low_tps`), the high edge only falls (to 1.25 of the
    baseline, once `REFINE_AFTER` requests are known), and the ceiling stays. A baseline outside the
    first-principles band narrows nothing: a machine that was always slow must not teach that slow
    is normal. The first band stays visible in `because`.
    """
    band, usual, low = envelope.decode, baseline.decode_tps, learned_low_tps(baseline)
    if band is None or usual is None or low is None:
        return envelope
    first = f"first principles: {number(band.low)}-{number(band.high)} tokens/s"
    if not is_possible(envelope, usual):
        note = (
            f"baseline of {number(usual)} tokens/s ({_from(baseline)}) lies outside it and was "
            "not used"
        )
        return replace(envelope, because=(*envelope.because, first, note))
    high = usual * REFINE_HIGH_RATIO if baseline.count >= REFINE_AFTER else max(band.high, usual)
    note = f"narrowed to the median of {_from(baseline)}, {number(usual)} tokens/s"
    return replace(
        envelope,
        decode=Range(low=max(band.low, low), high=min(max(band.high, usual), high)),
        expected_tps=usual,
        because=(*envelope.because, first, note),
    )


def is_possible(envelope: Envelope, usual_tps: float) -> bool:
    """Return True if a learned rate agrees with first principles, where these say anything.

    Below the band a machine was always slow; beyond physics it ran on what is not visible. Between
    the empirical high edge and physics it is only faster than others, and where physics says
    nothing (RAM of unknown speed), any higher rate is possible.
    """
    band, ceiling = envelope.decode, envelope.ceiling_tps
    if band is None:
        return True
    is_too_fast = ceiling is not None and usual_tps > max(band.high, ceiling)
    return band.low <= usual_tps and not is_too_fast


def learned_low_tps(baseline: Baseline) -> float | None:
    """Return the rate below which this setup was never healthy; None before it ever was.

    A share of the median that grows with how often it was healthy (`GRADES`), lower on a setup
    whose healthy requests spread wider than that. What other machines gave says less of this one,
    whose CPU, slot and cooling may differ: there it is 0.70, and needs `REFINE_AFTER` of them.
    """
    median = baseline.decode_tps
    if median is None or (baseline.peers and baseline.count < REFINE_AFTER):
        return None
    ratio = next((ratio for count, ratio in GRADES if baseline.count >= count), None)
    if ratio is None:
        return None
    if baseline.peers:
        return MIN_LEARNED_RATIO * median
    edge = ratio * median
    if baseline.count >= REFINE_AFTER and baseline.decode_p10_tps is not None:
        edge = min(edge, NOISE_RATIO * baseline.decode_p10_tps)
    return max(edge, MIN_LEARNED_RATIO * median)


def _from(baseline: Baseline) -> str:
    if not baseline.peers:
        return f"{baseline.count} earlier request{'s' if baseline.count != 1 else ''}"
    peers = "1 peer" if baseline.peers == 1 else f"{baseline.peers} peers"
    return f"{baseline.count} healthy requests on {peers} with the same card"
