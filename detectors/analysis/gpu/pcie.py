"""The PCIe links of the GPUs that serve: what they can carry, and what crosses them.

Strategy: a link is judged only while its GPU works, by the most that was seen, because an idle one
goes down by design. What crosses it, as a share of what it carries in practice, is the share of
the time that the GPU cannot do without it.

Sources: 26 GB/s of 31.5
from a host to a GPU on generation 4 x16 (FlashML-org/FreeToken#354), 27.1 between two GPUs
(noonghunna/club-3090, docs/PCIE_P2P.md); replays from NVIDIA/DCGM, DcgmHealthWatch.cpp, for a bit
error rate of 1e-12.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.gpu_window import Read, gained, gpu_facts, most
from slowtok.detectors.analysis.host_window import gpu_mean
from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.detectors.case.named_facts import label

REPLAYS_PER_LANE_MINUTE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
"""By generation: what a sound link may have."""

PRACTICAL_RATIO = 0.82
"""What copies reach of a lane's rate: 26 of 31.5 GB/s."""

FAULTED_RATIO = 0.3
"""What the GPU reaches of that where it asks for pages or cache lines while it computes, at the
worst. Heuristic: language models."""

FETCHING_BYTES_PER_S = 1e9
"""Decode moves next to nothing over PCIe (0.02 GB/s); weights that are fetched fill the link.
Heuristic: the value between."""

FULL_LANES = 16
WORKING_PSTATE = 2
WORKING_S = 1.0
"""A GPU at work is in P0 to P2 and busy for a second: then its link is up."""

MIN_LOOK_S = 1.0
"""It is looked at for a second more. Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One GPU's link as it is at work, and as it could be. `replays` says that too many came."""

    gpu: GpuFacts
    generation: int
    width: int
    replays: bool

    @property
    def rate_bytes_per_s(self) -> float:
        """Its own rate in one direction, before packets."""
        return LANE_BYTES_PER_S[self.generation] * self.width

    @property
    def carries_bytes_per_s(self) -> float:
        """What it carries in practice, in one direction."""
        return PRACTICAL_RATIO * self.rate_bytes_per_s

    @property
    def could_carry_bytes_per_s(self) -> float:
        """What it would carry in practice at the best of card and slot."""
        generation = max(self.gpu.max_pcie_generation or 0, self.generation)
        width = max(self.gpu.max_pcie_width or 0, self.width)
        return PRACTICAL_RATIO * LANE_BYTES_PER_S.get(generation, 0.0) * width

    @property
    def full_slot_bytes_per_s(self) -> float:
        """What a slot with 16 lanes would carry in practice."""
        lane = LANE_BYTES_PER_S[max(self.gpu.max_pcie_generation or 0, self.generation)]
        return PRACTICAL_RATIO * lane * FULL_LANES

    @property
    def is_degraded(self) -> bool:
        """Return True if it is below what card and slot can do."""
        generation, width = self.gpu.max_pcie_generation or 0, self.gpu.max_pcie_width or 0
        return self.generation < generation or self.width < width

    @property
    def name(self) -> str:
        """The GPU's number and name."""
        return label(self.gpu)


# What a PCI Express lane carries, for detectors and for reading counters alike.
#
# Source: PCI Express Base Specification.

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""By generation, in one direction, after line coding."""


def link_at_work(case: Case, index: int) -> Link | None:
    """Return one GPU's link; None where it was not seen at work, or has none (SoCs say x1)."""
    facts = gpu_facts(case, index)
    samples = [s for s in case.gpu if s.index == index]
    working = at_work(samples)
    generation = most(working, lambda s: s.pcie_generation)
    width = most(working, lambda s: s.pcie_width)
    if facts.unified_memory or not width or generation not in LANE_BYTES_PER_S:
        return None
    if working[-1].at_s - working[0].at_s < MIN_LOOK_S:
        return None
    return Link(
        gpu=facts,
        generation=int(generation or 0),
        width=int(width),
        replays=_replays_too_often(samples, int(generation or 0), int(width)),
    )


def at_work(samples: Sequence[GpuSample]) -> tuple[GpuSample, ...]:
    """Return the samples of one GPU at which it had worked for a second."""
    working: list[GpuSample] = []
    since_s: float | None = None
    for sample in samples:
        if not sample.busy_ratio or (sample.pstate or 0) > WORKING_PSTATE:
            since_s = None
            continue
        since_s = sample.at_s if since_s is None else since_s
        if sample.at_s - since_s >= WORKING_S:
            working.append(sample)
    return tuple(working)


def received(sample: GpuSample) -> float | None:
    """Return what went into the GPU, in bytes per second."""
    return sample.pcie_rx_bytes_per_s


def sent(sample: GpuSample) -> float | None:
    """Return what came out of the GPU, in bytes per second."""
    return sample.pcie_tx_bytes_per_s


def share_of(link: Link, samples: Sequence[GpuSample], read: Read) -> float | None:
    """Return the mean share of what the link carries that one direction used, at most 1."""
    rate = gpu_mean(samples, read)
    return None if rate is None else min(rate / link.carries_bytes_per_s, 1.0)


def busier_share(link: Link, samples: Sequence[GpuSample]) -> float | None:
    """Return the share of the direction that more crossed in."""
    known = [s for read in (received, sent) if (s := share_of(link, samples, read)) is not None]
    return max(known, default=None)


def samples_of(case: Case, phase: Phase, index: int) -> tuple[GpuSample, ...]:
    """Return one GPU's samples of a phase, without the first: its rates are of before."""
    return tuple(s for s in case.gpu_during(phase) if s.index == index)[1:]


def _replays_too_often(samples: Sequence[GpuSample], generation: int, width: int) -> bool:
    replays = gained(samples, lambda s: s.pcie_replays)
    if not replays:
        return False
    minutes = max((samples[-1].at_s - samples[0].at_s) / 60, 1.0)
    return replays > math.ceil(REPLAYS_PER_LANE_MINUTE[generation] * width * minutes)
