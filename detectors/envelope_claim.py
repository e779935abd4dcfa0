"""Is a claimed decode rate physically possible? The ceiling answers, not the band."""

from dataclasses import dataclass
from typing import Literal

from slowtok.detectors.case import Envelope
from slowtok.detectors.envelope_memory import GPU_HIGH_RATIO

Possibility = Literal["impossible", "unheard-of", "plausible", "slow", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The judgement of one claimed rate, for one stream without speculation.

    `ceiling_ratio` is the claim against the ceiling: 2 is twice what the memory can deliver.
    """

    possibility: Possibility
    tps: float
    ceiling_ratio: float | None
    because: str


def judge_claim(envelope: Envelope, tps: float) -> Claim:
    """Judge a claimed decode rate against an envelope.

    `impossible` is physics: above the ceiling. `unheard-of` is above `GPU_HIGH_RATIO` of it, which
    no published measurement reaches. `slow` is below the band. Without a ceiling: `unknown`.
    """
    ceiling = envelope.ceiling_tps
    if not ceiling:
        because = envelope.because[0] if envelope.because else "no ceiling is known"
        return Claim(possibility="unknown", tps=tps, ceiling_ratio=None, because=because)
    ratio = tps / ceiling
    possibility, because = _judge(envelope, tps, ratio)
    return Claim(possibility=possibility, tps=tps, ceiling_ratio=ratio, because=because)


def _judge(envelope: Envelope, tps: float, ratio: float) -> tuple[Possibility, str]:
    if ratio > 1:
        return "impossible", (
            f"{ratio:.3g} times what the memory can deliver: only speculative decoding, a sum over "
            "parallel requests, or prefill counted as decode can look like that"
        )
    if ratio > GPU_HIGH_RATIO:
        return "unheard-of", f"{ratio:.0%} of the memory's peak: no published run came so close"
    if envelope.decode is not None and tps < envelope.decode.low:
        return "slow", "below what this hardware gives when nothing is wrong"
    if envelope.decode is None:
        return "plausible", f"{ratio:.0%} of the memory's peak; the usual share is not known here"
    return "plausible", f"{ratio:.0%} of the memory's peak, inside the usual band"
