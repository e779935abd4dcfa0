"""The link between GPU and machine is slower than it should be, and much has to cross it.

Signal:
While the GPU works, its PCIe link has fewer lanes or a lower generation than card and slot can do,
or is as narrow as a riser; transfers with errors may be repeated (replays). And at least 30 % of
its capacity is in use, by weights that are fetched or sent over, by the results of several GPUs, or
by a load.

Not to be confused with:
- An idle link goes down to generation 1 by design. Only a working GPU's link counts.
- GPUs without a slot, on the same chip as the CPU, report generation 1 and one lane.
- If a model is wholly on one GPU, a slow link hardly changes its decode.
- `vram-spill`, `partial-offload`: these are the reasons why so much has to cross.

Remedy:
Reseat the card, remove the riser, check generation and bifurcation in the BIOS, or use a slot with
more lanes. If none of this is possible, reduce the traffic: put whole layers on each GPU.

Sources:
- ggml-org/llama.cpp#4766 (3 Tesla P40 at x8/x4/x4 instead of x16/x8/x8: decode 53.9 instead of
  55.2 tokens/s, prefill 712 instead of 879).
- robertrosenbusch/gfx803_rocm#51 (RX 580 on a x1 riser: 3.5 instead of 11 to 12 tokens/s, more
  than 100 s before the first token; 7 to 8 at x4).
- sudoingX/qwen38-mtp#65 (PCIe 2.0 x1: two cards together gain 29 % where others gain 48 to 68).
- `slowtok.detectors.analysis.gpu.pcie`: what links carry, and how many replays are sound
  (NVIDIA/DCGM).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.clocks import decodes_on_gpu
from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, median, without_first_second
from slowtok.detectors.analysis.gpu.pcie import (
    Link,
    busier_share,
    link_at_work,
    received,
    samples_of,
    sent,
    share_of,
)
from slowtok.detectors.analysis.host_window import CPU_DECODES_CORES
from slowtok.detectors.analysis.phase_loss import decode_excess_s, nearest_loss_s
from slowtok.detectors.analysis.placement.where import server_cores, serving_gpus
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Evidence, EvidenceKind, Finding, Missing, Traits, weigh
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.expectation.memory import is_tensor_parallel

TITLE = "PCIe link of the GPU too slow"
TRAITS = Traits(requires="gpu", persistent=True)

NARROW_BYTES_PER_S = 4e9
"""4 lanes of generation 3 and less: as risers and external boxes have. The report of 7 to 8 instead
of 11 to 12 tokens/s is from such a link. Others that are at their slot's best are no fault."""

# What a slow PCIe link costs: the time that a sound one would save on what crosses it.
#
# Strategy: bytes over what the link carries is the share of the time that it was in use; a link
# with twice the rate saves half of that. Where the traffic is not told (AMD), nothing can be
# predicted: only a setup that leaves no other place is blamed then, for all that decode lost.

MIN_SHARE = 0.3
"""Of what the link carries. Heuristic."""

MIN_EXCHANGE_SHARE = 0.1
"""The same where GPUs wait for each exchange: then every part of the time that the link was in use
was lost. Heuristic: a tenth is what is worth a word."""

SMALL_TRANSFER_RATIO = 0.5
"""What exchanges of some kilobytes each reach of what long copies do, at the most: the worst pair
that was published took 157 us for 10 kB (noonghunna/club-3090, docs/HARDWARE.md). Heuristic: the
value."""

STARVED_BYTES_PER_S = 1e9
"""One lane of generation 3 and less: where traffic is not told, only this can be blamed."""

WAITS_BUSY_RATIO = 0.9
"""A GPU that is busier does not wait for its link, and shows no other sign where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinkCost:
    """What one link cost in one phase; `share` is what crossed it, None where that is not told.

    `least_share` is from where on that much was too much.
    """

    link: Link
    phase: Phase
    lost_s: float
    share: float | None
    least_share: float = MIN_SHARE


def detect(case: Case) -> Finding | None:
    """Fire in the phase in which a link that is too slow cost most."""
    if not decodes_on_gpu(case):
        return None
    own = [gpu.index for gpu in serving_gpus(case) if not gpu.unified_memory]
    if not own:
        return None
    links = [link for index in own if (link := link_at_work(case, index)) is not None]
    slow = [link for link in links if _is_slow(link)]
    found = [cost for link in slow for cost in _costs(case, link)]
    if not found and slow and (cost := _unmeasured(case, slow)) is not None:
        found = [cost]
    if found:
        return _finding(case, max(found, key=lambda cost: cost.lost_s))
    if not links and _much_crosses(case, own):
        raise Missing("PCIe link of the working GPU")
    return None


def _is_slow(link: Link) -> bool:
    return link.is_degraded or link.replays or link.rate_bytes_per_s < NARROW_BYTES_PER_S


def _much_crosses(case: Case, indices: list[int]) -> bool:
    """Return True if a link that was not seen at work, in a short request, can matter at all."""
    read = [s.pcie_rx_bytes_per_s for s in case.gpu if s.index in indices]
    rates = [rate for rate in read if rate is not None]
    return bool(rates) and sum(rates) / len(rates) >= MIN_SHARE * STARVED_BYTES_PER_S


def _finding(case: Case, cost: _LinkCost) -> Finding:
    link = cost.link
    kinds: list[EvidenceKind] = ["gauge", "gauge" if cost.share is None else "counter"]
    if link.replays:
        kinds.append("counter")
    used = "" if cost.share is None else f" and was {100 * cost.share:.0f} % in use"
    return Finding(
        phase=cost.phase,
        confidence=weigh(*kinds),
        lost_s=cost.lost_s,
        summary=(
            f"The PCIe link of {link.name} worked at generation {link.generation} with "
            f"{link.width} lane{'s' if link.width > 1 else ''}{_instead(link)}: it carries about "
            f"{link.carries_bytes_per_s / 1e9:.1f} GB/s{used}; {cost.phase} lost about {{lost}}."
        ),
        remedy=_remedy(case, link),
        evidence=_evidence(cost),
    )


def _instead(link: Link) -> str:
    if not link.is_degraded:
        return ", and transfers had to be repeated" if link.replays else ""
    generation = max(link.gpu.max_pcie_generation or 0, link.generation)
    return f" instead of generation {generation} with {link.gpu.max_pcie_width or link.width}"


def _evidence(cost: _LinkCost) -> tuple[Evidence, ...]:
    link = cost.link
    width, generation = link.gpu.max_pcie_width, link.gpu.max_pcie_generation
    found = [
        Evidence(name="PCIe lanes", value=link.width, unit="lanes", limit=width),
        Evidence(name="PCIe generation", value=link.generation, unit="", limit=generation),
    ]
    if cost.share is not None:
        share, limit = 100 * cost.share, 100 * cost.least_share
        found.append(Evidence(name="PCIe link in use", value=share, unit="%", limit=limit))
    return tuple(found)


def _remedy(case: Case, link: Link) -> str:
    """The slot is free; less traffic costs a setting; the BIOS a restart; a board costs money."""
    steps = ["reseat the card and clean its contacts"]
    if is_tensor_parallel(case.server):
        steps.append(
            {
                "llama-server": "give each GPU whole layers (--split-mode layer)",
                "vllm": "use --pipeline-parallel-size in place of --tensor-parallel-size",
            }.get(case.server.kind, "give each GPU whole layers")
        )
    steps.append("put it into the slot with the most lanes, without a riser")
    if link.is_degraded:
        steps.append("look in the BIOS at PCIe generation and bifurcation of the slot")
    text = "; or ".join(steps)
    return f"{text[:1].upper()}{text[1:]}."


def _costs(case: Case, link: Link) -> Iterable[_LinkCost]:
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
            lost_s = nearest_loss_s(case, lost_s, most_s * saved_ratio)
        if link.replays and phase == "decode":
            lost_s = max(lost_s, min(decode_excess_s(case) or 0.0, took_s * most_share))
        if lost_s > 0:
            yield _LinkCost(
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


def _unmeasured(case: Case, links: Sequence[Link]) -> _LinkCost | None:
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
    lost_s = decode_excess_s(case) or 0.0
    if lost_s <= 0 or not (together or (starved and _waits(case))):
        return None
    narrowest = min(starved or untold, key=lambda link: link.carries_bytes_per_s)
    return _LinkCost(link=narrowest, phase="decode", lost_s=lost_s, share=None)


def _traffic(case: Case, link: Link) -> float | None:
    return busier_share(link, samples_of(case, "decode", link.gpu.index))


def _waits(case: Case) -> bool:
    """Return True if the GPUs were idle for a part of decode, all together."""
    gpus = by_gpu(case.gpu_during("decode")).values()
    busy = [median(without_first_second(samples), lambda s: s.busy_ratio) for samples in gpus]
    known = [ratio for ratio in busy if ratio is not None]
    return bool(known) and sum(known) < WAITS_BUSY_RATIO
