"""GPUs that compute each layer together: whether they wait for each other, and what that costs.

Strategy: each layer takes exchanges whose time is latency, not bytes, and nothing counts it. So the
signs are those of waiting, and what decode lost is charged up to the most that exchanges can cost.

Sources: 10 us for each of the two exchanges per layer and further GPU on two RTX 3090 with PCIe 4
(the envelope's constant); 42 us on PCIe 3 without peer-to-peer (noonghunna/club-3090#356: 50
instead of 68.5 tokens/s, 64 layers), 157 us with an old Xeon (its docs/HARDWARE.md: 32 instead of
89 tokens/s).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.gpu_share import MIN_OTHERS_RATIO, others
from slowtok.detectors.analysis.gpu.gpu_window import (
    gpu_facts,
    median,
    share_with_bits,
)
from slowtok.detectors.analysis.gpu.layer_split import (
    Samples,
    busy_medians,
    decode_samples,
    gpus_in_use,
)
from slowtok.detectors.analysis.gpu.pcie import link_at_work, received, sent
from slowtok.detectors.analysis.host_window import decode_s, gpu_mean
from slowtok.detectors.analysis.phase_loss import decode_excess_s
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.clocks_event import BRAKE_BITS, POWER_BITS, SLOWDOWN_BIT, THERMAL_BITS
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Missing, need
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.expectation.footprint import footprint
from slowtok.detectors.expectation.memory import is_tensor_parallel, vram
from slowtok.detectors.expectation.reads import NoBasis, reads_of

Sign = tuple[str, Evidence]
_SEEN: EvidenceKind = "gauge"

MAX_LAYER_S = 400e-6
"""The most that the two exchanges of a layer cost for each further GPU; the worst published pair is
at 314 us."""

MIN_LOPSIDED_RATIO = 0.2
"""Between the busiest and the idlest GPU. Reports show 31 and 57 points; heuristic: a
fifth."""

WORKING_RATIO, LOW_POWER_RATIO = 0.8, 0.9
"""A GPU this busy and still below this share of its power limit waits within its kernels. Reports
show 84 and 67 %; heuristic."""

BUSIER_RATIO = 1.2
"""GPUs that are busy for so many times what the work needs, by the low edge of what is expected,
wait within their kernels as well; those that wait for the CPU are busy for just what it needs.
Heuristic: a fifth."""

MIN_HAMPERED_RATIO = 0.5
"""Share of the samples with a bit that says why a GPU is slower. Heuristic."""

EXCHANGED_BYTES_PER_S, EXCHANGED_SHARE = 1e9, 0.1
"""So much each way, or a tenth of what the link carries. Heuristic. Whole layers exchange
kilobytes per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWaiting:
    """GPUs that compute each layer together and wait: signs in words, and what speaks against.

    `slower_than_one` says that they are slower than they would be without sharing.
    """

    gpus: int
    lost_s: float
    signs: tuple[str, ...]
    kinds: tuple[EvidenceKind, ...]
    against: int
    evidence: tuple[Evidence, ...]
    slower_than_one: bool


def exchange_loss(case: Case, indices: Sequence[int]) -> GpuWaiting | None:
    """Return what GPUs lost that compute each layer together; None where nothing shows it.

    Raises:
        Missing: the rate expected or how busy the GPUs are is not known.
    """
    lost_s = need(decode_excess_s(case), "decode rate expected of this GPU")
    slower_than_one = _slower_than_one(case, indices)
    if lost_s <= 0 and not slower_than_one:  # its own past may be no better
        return None
    samples = decode_samples(case, indices)
    signs = [
        *_lopsided(samples),
        *_low_power(case, samples),
        *slower_than_one,
        *_both_ways(case, samples),
    ]
    if not signs:
        need(busy_medians(samples) or None, "GPU utilisation")
        return None
    against = any(_is_hampered(found) for found in samples.values()) or case.server.eager is True
    most_s = max(_most_s(case, len(indices)), _longer_than_alone_s(case, indices))
    return GpuWaiting(
        gpus=len(indices),
        lost_s=min(lost_s, most_s),
        signs=tuple(said for said, _ in signs),
        kinds=tuple(_SEEN for _ in signs),
        against=int(against),
        evidence=tuple(evidence for _, evidence in signs)[:3],
        slower_than_one=bool(slower_than_one),
    )


def wait_for_each_other(case: Case) -> bool:
    """Return True if there are GPUs that compute each layer together and show signs of waiting."""
    indices = gpus_in_use(case)
    if len(indices) < 2 or not is_tensor_parallel(case.server):
        return False
    try:
        return exchange_loss(case, indices) is not None
    except Missing:  # nothing speaks for it
        return False


def _most_s(case: Case, gpus: int) -> float:
    """Return the most that exchanges can cost; without bound where layers are not known."""
    layers, tokens = case.model.layers, case.timeline.tokens.completion
    if not layers or not tokens:
        return math.inf
    return tokens * layers * (gpus - 1) * MAX_LAYER_S


def _longer_than_alone_s(case: Case, indices: Sequence[int]) -> float:
    """Return how much longer decode took than one card alone would have taken."""
    alone, rate = alone_tps(case, indices), case.phases.decode_tps
    if alone is None or not rate:
        return 0.0
    return max(decode_s(case) * (1 - rate / alone), 0.0)


def _lopsided(samples: Samples) -> list[Sign]:
    busy = busy_medians(samples)
    if len(busy) < 2 or max(busy) - min(busy) < MIN_LOPSIDED_RATIO:
        return []
    said = f"the busiest was {100 * max(busy):.0f} % busy, the idlest {100 * min(busy):.0f} %"
    spread = 100 * (max(busy) - min(busy))
    limit = 100 * MIN_LOPSIDED_RATIO
    return [(said, Evidence(name="unequally busy", value=spread, unit="%", limit=limit))]


def _low_power(case: Case, samples: Samples) -> list[Sign]:
    """All GPUs below their power while one is busy: where all idle alike, the CPU may be late."""
    ratios = [median(s, _power_ratio) for s in samples.values()]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or len(known) < len(samples) or max(known) > LOW_POWER_RATIO:
        return []
    busiest = max(busy_medians(samples), default=0.0)
    if busiest < WORKING_RATIO and busiest < BUSIER_RATIO * _needed_ratio(case):
        return []
    said, limit = f"none drew above {100 * max(known):.0f} % of its power", 100 * LOW_POWER_RATIO
    return [(said, Evidence(name="power", value=100 * max(known), unit="%", limit=limit))]


def _needed_ratio(case: Case) -> float:
    """Return the share of the time that the GPUs need at most to work at this rate."""
    band, rate = case.envelope.decode, case.phases.decode_tps
    return min(rate / band.low, 1.0) if band is not None and rate else 1.0


def _power_ratio(sample: GpuSample) -> float | None:
    if sample.power_w is None or not sample.power_limit_w:
        return None
    return sample.power_w / sample.power_limit_w


def _both_ways(case: Case, samples: Samples) -> list[Sign]:
    ways = [(gpu_mean(s, received), gpu_mean(s, sent)) for s in samples.values()]
    known = [min(into, out) for into, out in ways if into is not None and out is not None]
    least = min(known, default=0.0)
    links = [link for index in samples if (link := link_at_work(case, index)) is not None]
    enough = [EXCHANGED_SHARE * link.carries_bytes_per_s for link in links]
    limit = min([EXCHANGED_BYTES_PER_S, *enough])
    if len(known) < len(samples) or least < limit:
        return []
    said = f"{least / 1e9:.2g} GB/s each way over PCIe"
    return [
        (said, Evidence(name="PCIe each way", value=least / 1e9, unit="GB/s", limit=limit / 1e9))
    ]


def _slower_than_one(case: Case, indices: Sequence[int]) -> list[Sign]:
    """Return what one card alone would give, or whole layers on all of them, where that is more.

    Sharing each layer is there to be quicker than one card. Where it is slower, it costs more than
    it brings, whatever it is that they wait for.
    """
    alone, rate = alone_tps(case, indices), case.phases.decode_tps
    if alone is None or not rate or rate >= alone or _at_their_power(case, indices):
        return []
    who = "one of them alone" if _fits_one(case, indices) else "one after the other they"
    said = f"{who} would give about {alone:.0f} tokens/s"
    return [(said, Evidence(name="rate without sharing", value=alone, unit="tokens/s"))]


def alone_tps(case: Case, indices: Sequence[int]) -> float | None:
    """Return what the slowest of the GPUs should give without the others; None if not known.

    Whole layers on several of them, one after the other, give about the same.
    """
    try:
        reads = reads_of(case.model, case.server, case.envelope.context_tokens)
        cards = [vram(gpu_facts(case, i), case.model, case.server, case.device) for i in indices]
    except NoBasis:
        return None
    return min(card.expected_tps(reads) for card in cards)


def _fits_one(case: Case, indices: Sequence[int]) -> bool:
    """Return True if one of the GPUs surely holds the model with the context that is used."""
    used = case.envelope.context_tokens
    size = footprint(case.model, case.server, context_tokens=used)
    room = min(gpu_facts(case, i).total_bytes or 0 for i in indices)
    return size is not None and size.fits(room) is True


def _at_their_power(case: Case, indices: Sequence[int]) -> bool:
    """Return True if a reached power limit slows a GPU: then it works, and does not wait."""
    return any(
        (share_with_bits(samples, POWER_BITS) or 0.0) >= MIN_HAMPERED_RATIO
        and (median(samples, _power_ratio) or 0.0) > LOW_POWER_RATIO
        for samples in decode_samples(case, indices).values()
    )


def _is_hampered(samples: Sequence[GpuSample]) -> bool:
    """Return True if a GPU has a reason of its own to be late: heat, brake, another process."""
    slowed = share_with_bits(samples, THERMAL_BITS | BRAKE_BITS | SLOWDOWN_BIT) or 0.0
    shared = [others(s) for s in samples if s.processes]
    return slowed >= MIN_HAMPERED_RATIO or (
        bool(shared) and sum(shared) / len(shared) >= MIN_OTHERS_RATIO
    )
