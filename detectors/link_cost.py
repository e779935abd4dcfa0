"""What a slow PCIe link costs: the time that a sound one would save on what crosses it.

Strategy: bytes over what the link carries is the share of the time that it was in use; a link with
twice the rate saves half of that. Where the traffic is not told (AMD), nothing can be predicted:
only a setup that leaves no other place is blamed then, for all that decode lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.envelope_memory import is_tensor_parallel
from slowtok.detectors.excess import excess
from slowtok.detectors.finding import Missing
from slowtok.detectors.gpu_window import by_gpu, median, settled
from slowtok.detectors.link import Link, busier_share, samples_of
from slowtok.detectors.placement import server_cores, serving_gpus
from slowtok.detectors.window import CPU_DECODES_CORES

MIN_SHARE = 0.3
"""Of what the link carries. Proposed, no published source."""

STARVED_BYTES_PER_S = 1e9
"""One lane of generation 3 and less: where traffic is not told, only this can be blamed."""

WAITS_BUSY_RATIO = 0.9
"""A GPU that is busier does not wait for its link, and shows no other sign where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """What one link cost in one phase; `share` is what crossed it, None where that is not told."""

    link: Link
    phase: Phase
    lost_s: float
    share: float | None


def costs(case: Case, link: Link) -> Iterable[LinkCost]:
    """Return what it cost in each phase in which much crossed it.

    What replays cost is not known: what decode lost, up to the time that the link was in use.
    """
    better = link.could_carry_bytes_per_s if link.is_degraded else link.full_slot_bytes_per_s
    phases: dict[Phase, float | None] = {
        "load": case.phases.load_s,
        "prefill": case.phases.prefill_s,
        "decode": case.phases.decode_s,
    }
    for phase, took_s in phases.items():
        share = busier_share(link, samples_of(case, phase, link.gpu.index))
        if not took_s or share is None or share < MIN_SHARE:
            continue
        lost_s = took_s * share * (1 - min(link.carries_bytes_per_s / better, 1.0))
        if link.replays and phase == "decode":
            lost_s = max(lost_s, min(excess(case) or 0.0, took_s * share))
        if lost_s > 0:
            yield LinkCost(link=link, phase=phase, lost_s=lost_s, share=share)


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
