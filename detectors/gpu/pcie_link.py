"""The link between GPU and machine is slower than it should be, and much has to cross it.

Signal:
While the GPU works, its PCIe link has fewer lanes or a lower generation than card and slot can do,
or is as narrow as a riser; errors on it may be repeated (replays). And what crosses it is at least
30 % of what it carries: weights that are fetched or sent over, results of several GPUs, a load.

Not to be confused with:
- An idle link: it goes down to generation 1 by design. Only a working GPU's link counts.
- GPUs without a slot, on the same chip as the CPU: they say generation 1, one lane.
- A model that is wholly on one GPU: a slow link hardly changes its decode.
- `vram-spill`, `partial-offload`: why so much has to cross.

Remedy:
Reseat the card, leave out the riser, look at generation and bifurcation in the BIOS, take a slot
with more lanes. Where that cannot be, have less cross it: whole layers on each GPU.

Sources:
- ggml-org/llama.cpp#4766 (3 Tesla P40 at x8/x4/x4 instead of x16/x8/x8: decode 53.9 instead of
  55.2 tokens/s, prefill 712 instead of 879).
- robertrosenbusch/gfx803_rocm#51 (RX 580 on a x1 riser: 3.5 instead of 11 to 12 tokens/s, more
  than 100 s before the first token; 7 to 8 at x4).
- sudoingX/qwen38-mtp#65 (PCIe 2.0 x1: two cards together gain 29 % where others gain 48 to 68).
- `slowtok.detectors.link`, `slowtok.detectors.link_cost`: what links carry, how many replays are
  sound (NVIDIA/DCGM), and what a slow one costs.
"""

from slowtok.detectors.case import Case
from slowtok.detectors.clocks import decodes_on_gpu
from slowtok.detectors.envelope_memory import is_tensor_parallel
from slowtok.detectors.finding import Channel, Evidence, Finding, Missing, weigh
from slowtok.detectors.link import Link, link_at_work
from slowtok.detectors.link_cost import MIN_SHARE, STARVED_BYTES_PER_S, LinkCost, costs, unmeasured
from slowtok.detectors.placement import serving_gpus

TITLE = "PCIe link of the GPU too slow"

NARROW_BYTES_PER_S = 4e9
"""4 lanes of generation 3 and less: as risers and external boxes have. The report of 7 to 8 instead
of 11 to 12 tokens/s is from such a link. Others that are at their slot's best are no fault."""


def detect(case: Case) -> Finding | None:
    """Fire in the phase in which a link that is too slow cost most."""
    if not decodes_on_gpu(case):
        return None
    own = [gpu.index for gpu in serving_gpus(case) if not gpu.unified_memory]
    if not own:
        return None
    links = [link for index in own if (link := link_at_work(case, index)) is not None]
    slow = [link for link in links if _is_slow(link)]
    found = [cost for link in slow for cost in costs(case, link)]
    if not found and slow and (cost := unmeasured(case, slow)) is not None:
        found = [cost]
    if found:
        return _finding(case, max(found, key=lambda cost: cost.lost_s))
    if not links and _much_crosses(case, own):
        raise Missing("PCIe link of the working GPU")
    return None


def _is_slow(link: Link) -> bool:
    return link.is_degraded or link.replays or link.rate_bytes_per_s < NARROW_BYTES_PER_S


def _much_crosses(case: Case, indices: list[int]) -> bool:
    """Say whether a link that was not seen at work, short as the request was, can matter at all."""
    read = [s.pcie_rx_bytes_per_s for s in case.gpu if s.index in indices]
    rates = [rate for rate in read if rate is not None]
    return bool(rates) and sum(rates) / len(rates) >= MIN_SHARE * STARVED_BYTES_PER_S


def _finding(case: Case, cost: LinkCost) -> Finding:
    link = cost.link
    channels: list[Channel] = ["gauge", "gauge" if cost.share is None else "counter"]
    if link.replays:
        channels.append("counter")
    used = "" if cost.share is None else f" and was {100 * cost.share:.0f} % in use"
    return Finding(
        phase=cost.phase,
        confidence=weigh(*channels),
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


def _evidence(cost: LinkCost) -> tuple[Evidence, ...]:
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
