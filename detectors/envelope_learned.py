"""What a setup gave before narrows its band: how far, and what it may never do.

No threshold here has a published source.
"""

from dataclasses import replace

from slowtok.detectors.case import Baseline, Envelope, Range

REFINE_AFTER = 5  # healthy requests; no published source
REFINE_HIGH_RATIO = 1.25  # no published source
LEARNED_RATIO = 0.85  # of the setup's own healthy median; no published source
MIN_LEARNED_RATIO = 0.70  # however noisy the setup, and of peers' median; no published source
NOISE_RATIO = 0.95  # below what one healthy request in ten gave is noise no more; no source


def refine(envelope: Envelope, baseline: Baseline) -> Envelope:
    """Narrow the band around what this setup gave before, once `REFINE_AFTER` requests are known.

    The low edge only rises (see `learned_low_tps`), the high edge only falls (to 1.25 of the
    baseline), and the ceiling stays. A baseline outside the first-principles band narrows nothing:
    a machine that was always slow must not teach that slow is normal. The first band stays
    visible in `because`.
    """
    band, usual, low = envelope.decode, baseline.decode_tps, learned_low_tps(baseline)
    if band is None or usual is None or low is None:
        return envelope
    first = f"first principles: {band.low:.3g}-{band.high:.3g} tokens/s"
    if not band.low <= usual <= band.high:
        note = (
            f"baseline of {usual:.3g} tokens/s ({_from(baseline)}) lies outside it and was not used"
        )
        return replace(envelope, because=(*envelope.because, first, note))
    high = usual * REFINE_HIGH_RATIO
    note = f"narrowed to the median of {_from(baseline)}, {usual:.3g} tokens/s"
    return replace(
        envelope,
        decode=Range(low=max(band.low, low), high=min(band.high, high)),
        expected_tps=usual,
        because=(*envelope.because, first, note),
    )


def learned_low_tps(baseline: Baseline) -> float | None:
    """Return the rate below which this setup was never healthy; None until enough was seen.

    0.85 of the median, lower on a setup whose healthy requests spread wider than that. What other
    machines gave says less of this one, whose CPU, slot and cooling may differ: there it is 0.70.
    """
    median = baseline.decode_tps
    if median is None or baseline.count < REFINE_AFTER:
        return None
    if baseline.peers:
        return MIN_LEARNED_RATIO * median
    edge = LEARNED_RATIO * median
    if baseline.decode_p10_tps is not None:
        edge = min(edge, NOISE_RATIO * baseline.decode_p10_tps)
    return max(edge, MIN_LEARNED_RATIO * median)


def _from(baseline: Baseline) -> str:
    if not baseline.peers:
        return f"{baseline.count} earlier requests"
    peers = "1 peer" if baseline.peers == 1 else f"{baseline.peers} peers"
    return f"{baseline.count} healthy requests on {peers} with the same card"
