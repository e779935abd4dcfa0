"""A server's GPU memory over time, and where in it a model was loaded. Pure.

Strategy: what a process holds is its own from the moment it is known to be the server's, also in
samples from before: a server that is loading may not have been recognised yet.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slowtok.detectors.analysis.vram import MODEL_BYTES, VramSplit, split, sum_if_all
from slowtok.detectors.case.machine import GpuProcess, GpuSample

RISE_RATIO = 0.5
"""Below this share of what it holds now, a server did not have its model. Heuristic."""

RISEN_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The memory of the GPUs that serve at `at_s`: the server's, everyone else's, free.

    `by_pid` has those processes of the server that tell what they hold.
    """

    at_s: float
    server_bytes: int | None
    others_bytes: int | None
    free_bytes: int
    by_pid: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """A load seen from outside: what was there just before, and when it was done."""

    before: Held
    done_at_s: float


def held_over_time(
    samples: Iterable[GpuSample], gpus: Collection[int], pids: Collection[int]
) -> list[Held]:
    """Return what was held at each listing of processes, oldest first.

    `gpus` are those that serve; `pids` are the server's, also those it had before.
    """
    newest: dict[int, GpuSample] = {}
    held = []
    for sample in sorted(samples, key=lambda sample: sample.at_s):
        if sample.processes is None or sample.index not in gpus:
            continue
        seen = tuple([_seen(p, pids) for p in sample.processes])
        newest[sample.index] = (
            sample if seen == sample.processes else replace(sample, processes=seen)
        )
        if len(newest) == len(gpus) and (found := _together(sample.at_s, newest.values())):
            held.append(found)
    return held


def last_rise(held: Sequence[Held]) -> Rise | None:
    """Return the load that what is held at the end comes from; None where none was seen."""
    known = [(h, h.server_bytes) for h in held if h.server_bytes is not None]
    if not known or known[-1][1] < MODEL_BYTES:
        return None
    now = known[-1][1]
    low = next((i for i in reversed(range(len(known))) if known[i][1] < RISE_RATIO * now), None)
    if low is None:
        return None
    risen = next(h for h, count in known[low + 1 :] if count >= RISEN_RATIO * now)
    while low > 0 and known[low - 1][1] < known[low][1]:
        low -= 1
    if now - known[low][1] < MODEL_BYTES:
        return None
    return Rise(before=known[low][0], done_at_s=risen.at_s)


def lowest(held: Sequence[Held], from_s: float, to_s: float) -> Held | None:
    """Return the moment between two times at which the server held least, the latest such."""
    known = [h for h in held if from_s <= h.at_s <= to_s and h.server_bytes is not None]
    return min(reversed(known), key=lambda h: h.server_bytes or 0, default=None)


def _seen(process: GpuProcess, pids: Collection[int]) -> GpuProcess:
    is_server = process.pid in pids
    if process.is_server in (None, is_server):
        return process
    return replace(process, is_server=is_server)


def _together(at_s: float, samples: Iterable[GpuSample]) -> Held | None:
    seen = tuple(samples)
    known = [memory for memory in map(split, seen) if memory is not None]
    if len(known) < len(seen):
        return None
    by_pid: Counter[int] = Counter()
    for process in (p for sample in seen for p in sample.processes or () if p.is_server):
        by_pid[process.pid] += process.memory_bytes or 0
    return Held(
        at_s=at_s,
        server_bytes=sum_if_all(memory.server_bytes for memory in known),
        others_bytes=sum_if_all(_others(memory) for memory in known),
        free_bytes=sum(memory.free_bytes for memory in known),
        by_pid=by_pid,
    )


def _others(memory: VramSplit) -> int | None:
    """Return what is neither free nor the server's; None where that cannot be told apart."""
    if memory.server_bytes is None:
        return None
    if memory.hidden_bytes is None:
        return memory.others_bytes
    return max(memory.usable_bytes - memory.free_bytes - memory.server_bytes, 0)
