"""Shares of a GPU's time by process: the server's and the others', as the driver measures them.

Strategy: on a full GPU, what others had is what the server waited for. Where the driver's shares
add up to more than all (they overlap, or are rounded), they are scaled down to it.
"""

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slowtok.detectors.analysis.rate_shape import step_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuProcess, GpuSample

MIN_OTHERS_RATIO = 0.1
"""Heuristic: desktops that draw take up to a twentieth."""

FULL_RATIO = 0.9
APART_S = 0.9
MIN_INTERVALS = 4
MIN_CORRELATION = 0.35
"""The least correlation at which CPI2 blames a neighbour (Zhang et al., EuroSys 2013)."""

MIN_SPREAD_RATIO = 0.1
"""A neighbour whose share scatters by less than this (standard deviation) works steadily, and shows
no relation. Heuristic."""

MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """One GPU's time: means over the samples that tell each process's share.

    `taken_ratio` is the share of the time that the server waited for others; `pid` and `name` are
    of the process that had most of it.
    """

    index: int
    own_ratio: float
    others_ratio: float
    taken_ratio: float
    busy_ratio: float
    pid: int | None
    name: str | None
    samples: tuple[GpuSample, ...]


def sharing_of(index: int, samples: Sequence[GpuSample]) -> Sharing | None:
    """Return who had one GPU's time; None where that is not told, or whose a process is."""
    told = tuple(s for s in samples if _is_told(s))
    if not told:
        return None
    worst = _worst(told)
    return Sharing(
        index=index,
        own_ratio=statistics.fmean([_own(s) for s in told]),
        others_ratio=statistics.fmean([others(s) for s in told]),
        taken_ratio=statistics.fmean([_taken(s) for s in told]),
        busy_ratio=statistics.fmean([_busy(s) for s in told]),
        pid=None if worst is None else worst.pid,
        name=None if worst is None else worst.name,
        samples=told,
    )


def own_time(gpus: Mapping[int, Sequence[GpuSample]]) -> float:
    """Return the share of the time in which the GPUs computed for the server, one after another.

    A GPU whose processes' shares are not told counts as busy for the server all the time.
    """
    told = [[_own(s) for s in samples if _is_told(s)] for samples in gpus.values()]
    return min(sum(statistics.fmean(shares) if shares else 1.0 for shares in told), 1.0)


def others(sample: GpuSample) -> float:
    """Return the share of the time that other processes' kernels ran."""
    return sum([p.busy_ratio or 0.0 for p in sample.processes or () if not p.is_server])


def follows(case: Case, shared: Sharing) -> bool | None:
    """Return True if tokens came slower when others computed; None where neither changed enough.

    Where the rate fell at one moment, what others had before and after it tells.
    """
    step = step_of(case)
    if step is not None and step.after_tps < step.before_tps:
        before = [others(s) for s in shared.samples if s.at_s < step.at_s]
        after = [others(s) for s in shared.samples if s.at_s >= step.at_s]
        if before and after:
            return statistics.fmean(after) - statistics.fmean(before) >= MIN_OTHERS_RATIO
        return None
    pairs = [
        (others(now), rate)
        for before, now in itertools.pairwise(_apart(shared.samples))
        if (rate := _arrivals_per_s(case, before.at_s, now.at_s)) is not None
    ]
    if len(pairs) < MIN_INTERVALS:
        return None
    taken, rates = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if statistics.pstdev(taken) < MIN_SPREAD_RATIO:
        return None
    if max(rates) == min(rates):
        return False
    return statistics.correlation(taken, rates) <= -MIN_CORRELATION


def runs_mps(samples: Sequence[GpuSample]) -> bool:
    """Return True if NVIDIA's MPS lets processes compute side by side, without turns."""
    return any((p.name or "").startswith(MPS_SERVER) for s in samples for p in s.processes or ())


def _apart(samples: Sequence[GpuSample]) -> Sequence[GpuSample]:
    """Return samples about a second apart, as the driver's shares are."""
    kept: list[GpuSample] = []
    for sample in samples:
        if not kept or sample.at_s - kept[-1].at_s >= APART_S:
            kept.append(sample)
    return kept


def _is_told(sample: GpuSample) -> bool:
    """A process without a share was idle, where any other one has a share."""
    processes = sample.processes
    if not processes:
        return False
    known = any(p.busy_ratio is not None for p in processes)
    return known and all(p.is_server is not None for p in processes)


def _own(sample: GpuSample) -> float:
    return sum([p.busy_ratio or 0.0 for p in sample.processes or () if p.is_server])


def _taken(sample: GpuSample) -> float:
    had = others(sample)
    if not had or _busy(sample) < FULL_RATIO:
        return 0.0
    return had / max(_own(sample) + had, 1.0)


def _busy(sample: GpuSample) -> float:
    if sample.busy_ratio is not None:
        return sample.busy_ratio
    return min(_own(sample) + others(sample), 1.0)


def _worst(samples: Sequence[GpuSample]) -> GpuProcess | None:
    had: Counter[int] = Counter()
    by_pid: dict[int, GpuProcess] = {}
    for process in (p for s in samples for p in s.processes or () if not p.is_server):
        had[process.pid] += round(1000 * (process.busy_ratio or 0.0))
        by_pid[process.pid] = process
    return by_pid[had.most_common(1)[0][0]] if had else None


def _arrivals_per_s(case: Case, begin_s: float, end_s: float) -> float | None:
    times = case.timeline.token_at_s
    if not times or end_s - begin_s <= 0 or begin_s < times[0] or end_s > times[-1]:
        return None
    return sum(1 for t in times if begin_s < t <= end_s) / (end_s - begin_s)
