"""What a slow PCIe link costs: the time that a sound one would save on what crosses it.

Strategy: bytes over what the link carries is the share of the time that it was in use; a link with
twice the rate saves half of that. Where the traffic is not told (AMD), nothing can be predicted:
only a setup that leaves no other place is blamed then, for all that decode lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.envelope_memory import is_tensor_parallel
from slowtok.detectors.excess import excess, within
from slowtok.detectors.finding import Missing
from slowtok.detectors.gpu_window import by_gpu, median, settled
from slowtok.detectors.link import Link, busier_share, received, samples_of, sent, share_of
from slowtok.detectors.machine import GpuSample
from slowtok.detectors.placement import server_cores, serving_gpus
from slowtok.detectors.window import CPU_DECODES_CORES

MIN_SHARE = 0.3
"""Of what the link carries. Proposed, no published source."""

MIN_EXCHANGE_SHARE = 0.1
"""The same where GPUs wait for each exchange: then every part of the time that the link was in use
was lost. No published source: a tenth is what is worth a word."""

SMALL_TRANSFER_RATIO = 0.5
"""What exchanges of some kilobytes each reach of what long copies do, at the most: the worst pair
that was published took 157 us for 10 kB (noonghunna/club-3090, docs/HARDWARE.md). No published
source for the value."""

STARVED_BYTES_PER_S = 1e9
"""One lane of generation 3 and less: where traffic is not told, only this can be blamed."""

WAITS_BUSY_RATIO = 0.9
"""A GPU that is busier does not wait for its link, and shows no other sign where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """What one link cost in one phase; `share` is what crossed it, None where that is not told.

    `least_share` is from where on that much was too much.
    """

    link: Link
    phase: Phase
    lost_s: float
    share: float | None
    least_share: float = MIN_SHARE


def costs(case: Case, link: Link) -> Iterable[LinkCost]:
    """Return what it cost in each phase in which much crossed it.

    What replays cost is not known: what decode lost, up to the time that the link was in use.
    """
    better = link.could_carry_bytes_per_s if link.is_degraded else link.full_slot_bytes_per_s
    saved_ratio = 1 - min(link.carries_bytes_per_s / better, 1.0)
    phases: dict[Phase, float | None] = {
        "load": case.phases.load_s,
        "prefill": case.phases.prefill_s,
        "decode": case.phases.decode_s,
    }
    for phase, took_s in phases.items():
        samples = samples_of(case, phase, link.gpu.index)
        share, most_share = busier_share(link, samples), _most_share(case, link, phase, samples)
        if not took_s or share is None or most_share is None:
            continue
        waits = most_share > share
        least = MIN_EXCHANGE_SHARE if waits else MIN_SHARE
        if most_share < least:
            continue
        lost_s = took_s * share * saved_ratio
        if waits:
            most_s = min(most_share / SMALL_TRANSFER_RATIO, 1.0) * took_s
            lost_s = within(case, lost_s, most_s * saved_ratio)
        if link.replays and phase == "decode":
            lost_s = max(lost_s, min(excess(case) or 0.0, took_s * most_share))
        if lost_s > 0:
            yield LinkCost(
                link=link, phase=phase, lost_s=lost_s, share=most_share, least_share=least
            )


def _most_share(case: Case, link: Link, phase: Phase, samples: Sequence[GpuSample]) -> float | None:
    """Return the most of the time that the GPU may have waited for its link, as a share.

    GPUs that compute each layer together go on when the results of the others are there. Without a
    direct way these lie in RAM between: what is sent has arrived before it is received.
    """
    known = [s for read in (received, sent) if (s := share_of(link, samples, read)) is not None]
    if not known:
        return None
    together = is_tensor_parallel(case.server) and len(serving_gpus(case)) > 1
    return min(sum(known), 1.0) if together and phase == "decode" else max(known)


def unmeasured(case: Case, links: Sequence[Link]) -> LinkCost | None:
    """Return the cost where traffic is not told; None where it is, or can hardly matter.

    Raises:
        Missing: the CPU computes a part, so that how much crosses decides.
    """
    untold = [link for link in links if _traffic(case, link) is None]
    if not untold:
        return None
    if (server_cores(case) or 0.0) > CPU_DECODES_CORES:
        raise Missing("PCIe traffic")
    together = is_tensor_parallel(case.server) and len(serving_gpus(case)) > 1
    starved = [link for link in untold if link.rate_bytes_per_s <= STARVED_BYTES_PER_S]
    lost_s = excess(case) or 0.0
    if lost_s <= 0 or not (together or (starved and _waits(case))):
        return None
    narrowest = min(starved or untold, key=lambda link: link.carries_bytes_per_s)
    return LinkCost(link=narrowest, phase="decode", lost_s=lost_s, share=None)


def _traffic(case: Case, link: Link) -> float | None:
    return busier_share(link, samples_of(case, "decode", link.gpu.index))


def _waits(case: Case) -> bool:
    """Say whether the GPUs were idle for a part of decode, all together."""
    gpus = by_gpu(case.gpu_during("decode")).values()
    busy = [median(settled(samples), lambda s: s.busy_ratio) for samples in gpus]
    known = [ratio for ratio in busy if ratio is not None]
    return bool(known) and sum(known) < WAITS_BUSY_RATIO
