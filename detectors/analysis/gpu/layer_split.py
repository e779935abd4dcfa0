"""A model split by layers: who holds how much, whether the cards idle, and what that costs.

Strategy: a token takes the sum of what each card reads over its bandwidth, so shares of memory and
bandwidths give the rate. The cards work one after the other: together they are busy all the time,
and what is missing is lost between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.gpu.gpu_window import gpu_facts, median, without_first_second
from slowtok.detectors.analysis.gpu.vram import newest_split
from slowtok.detectors.analysis.host_window import CPU_DECODES_CORES, decode_s, mean
from slowtok.detectors.analysis.phase_loss import decode_excess_s
from slowtok.detectors.analysis.placement.where import server_cores
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import need
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.expectation.footprint import footprint

Samples = dict[int, tuple[GpuSample, ...]]

IDLE_TOGETHER_RATIO = 0.8
MIN_GAIN = 1.15
MIN_READ_BYTES_PER_S = 10e6
"""All are heuristic."""

HELD_BYTES = 512 * 2**20
"""A GPU with less of the server than this only has its context. Heuristic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """GPUs that work one after the other and are busy for less than all of the time, together."""

    gpus: int
    busy_ratio: float
    lost_s: float
    best_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """A split by layers that leaves more than needed on the slower GPU; `gain` is in rate."""

    slow_index: int
    fast_index: int
    slow_bytes_per_s: float
    fast_bytes_per_s: float
    slow_share: float
    slow_time_share: float
    best_shares: tuple[float, ...]
    fits_fast: bool
    gain: float


def gpus_in_use(case: Case) -> tuple[int, ...]:
    """Return the GPUs that hold the model: by the engine's processes, else those that it holds."""
    if case.server.gpu_indices is not None:
        return case.server.gpu_indices
    seen = sorted({s.index for s in case.gpu})
    if (case.server.tensor_parallel or 1) > 1:
        return tuple(seen)
    held = {i: _held_bytes(case, i) for i in seen}
    return tuple(i for i, count in held.items() if (count or 0) >= HELD_BYTES)


def decode_samples(case: Case, indices: Sequence[int]) -> Samples:
    """Return each GPU's samples of decode, without the stale first second."""
    found = case.gpu_during("decode")
    return {i: without_first_second([s for s in found if s.index == i]) for i in indices}


def busy_medians(samples: Samples) -> list[float]:
    """Return how busy each GPU was, of those that tell."""
    found = [median(s, lambda g: g.busy_ratio) for s in samples.values()]
    return [ratio for ratio in found if ratio is not None]


def gap_between(case: Case, indices: Sequence[int]) -> Gap | None:
    """Return the time in which none of the GPUs computed, where one would hold the model.

    A CPU that computes, or a disk that is read, leaves such gaps, too.
    """
    lost_s, size = decode_excess_s(case), footprint(case.model, case.server)
    rooms = {i: gpu_facts(case, i).total_bytes or 0 for i in indices}
    best = max(indices, key=lambda i: gpu_facts(case, i).bandwidth_bytes_per_s or 0.0)
    if not lost_s or size is None or not size.fits(rooms[best]):
        return None
    host = case.host_during("decode")
    reads = mean(host, lambda s: s.server_read_bytes_per_s) or 0.0
    if (server_cores(case) or 0.0) > CPU_DECODES_CORES or reads >= MIN_READ_BYTES_PER_S:
        return None
    samples = decode_samples(case, indices)
    busy = need(busy_medians(samples) or None, "GPU utilisation")
    together = sum(busy)
    if len(busy) < len(indices) or together > IDLE_TOGETHER_RATIO:
        return None
    idle_s = decode_s(case) * (1 - together)
    return Gap(gpus=len(indices), busy_ratio=together, lost_s=min(lost_s, idle_s), best_index=best)


def uneven(case: Case, indices: Sequence[int]) -> Uneven | None:
    """Return a split that could be clearly faster, None where it cannot or that is not known."""
    held = [_held_bytes(case, i) for i in indices]
    speeds = [gpu_facts(case, i).bandwidth_bytes_per_s for i in indices]
    known_held = [count for count in held if count]
    known_speeds = [speed for speed in speeds if speed]
    if len(known_held) < len(indices) or len(known_speeds) < len(indices):
        return None
    total = sum(known_held)
    shares = [count / total for count in known_held]
    best = _fastest_first(case, indices, known_speeds, total)
    if best is None:
        return None
    gain = _time(shares, known_speeds) / _time(best, known_speeds)
    if gain < MIN_GAIN:
        return None
    slow, fast = (pick(range(len(indices)), key=lambda k: known_speeds[k]) for pick in (min, max))
    return Uneven(
        slow_index=indices[slow],
        fast_index=indices[fast],
        slow_bytes_per_s=known_speeds[slow],
        fast_bytes_per_s=known_speeds[fast],
        slow_share=shares[slow],
        slow_time_share=shares[slow] / known_speeds[slow] / _time(shares, known_speeds),
        best_shares=tuple(best),
        fits_fast=best[fast] >= 1.0,
        gain=gain,
    )


def _fastest_first(
    case: Case, indices: Sequence[int], speeds: Sequence[float], total: float
) -> list[float] | None:
    """Return the shares with the fastest GPU filled first; None where a room is not known."""
    left, shares = total, [0.0] * len(indices)
    for k in sorted(range(len(indices)), key=lambda k: -speeds[k]):
        split = newest_split([s for s in case.gpu if s.index == indices[k]])
        if split is None or split.server_bytes is None:
            return None
        room = split.server_bytes + max(split.free_bytes - HELD_BYTES, 0)
        shares[k] = min(room, left) / total
        left -= min(room, left)
    return shares


def _time(shares: Sequence[float], speeds: Sequence[float]) -> float:
    return sum(share / speed for share, speed in zip(shares, speeds, strict=True))


def _held_bytes(case: Case, index: int) -> int | None:
    split = newest_split([s for s in case.gpu if s.index == index])
    return None if split is None else split.server_bytes
