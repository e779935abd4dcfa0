"""Ownership of a GPU's memory: this server's, other processes', hidden, free.

Strategy: the driver's list of processes says who holds what. What is in use and on nobody's name is
hidden: another pid namespace, Windows, WSL2, a display, managed memory.

Trap: NVML's own `used` is not asked. Its first version counts what the driver keeps for itself
(`reserved`) as used; its second did not when measured (RTX 5090: 14,316 and 13,856 MiB, 460 of them
reserved), although nvml.h says that it does. `total` and `free` mean the same in both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slowtok.detectors.case.machine import GpuProcess, GpuSample

MODEL_BYTES = 512 * 2**20
"""If more than this is hidden, it may be a model. Heuristic: small desktops and a CUDA
context hide less; WSL2 hides 1.3 GiB when idle, and all of its processes."""

SKEW_RATIO = 0.02
"""Memory and processes are asked milliseconds apart: what they disagree by, as a share of all.
Heuristic; beyond it the numbers contradict each other."""


class Holder(NamedTuple):
    """A process that holds memory on a GPU; `memory_bytes` is None where the driver hides it."""

    name: str | None
    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VramSplit:
    """One GPU's memory in bytes; server, others, unassigned, hidden and free make up `usable`.

    `server_bytes` is None where some of what is in use may be the server's without the driver
    saying so: then `hidden_bytes` and `unassigned_bytes` may be the server's too. `others` are the
    largest first. `unassigned_bytes` is held by processes of which it cannot be told whose they
    are. `usable_bytes` is the total without what the driver reserves; where that is not known, the
    total, and `hidden_bytes` is None.
    """

    server_bytes: int | None
    others: tuple[Holder, ...]
    hidden_bytes: int | None
    free_bytes: int
    total_bytes: int
    usable_bytes: int
    unassigned_bytes: int | None = 0

    @property
    def others_bytes(self) -> int | None:
        """What the named others hold together; None where one of them does not tell."""
        return sum_if_all(other.memory_bytes for other in self.others)


def split_vram(sample: GpuSample) -> VramSplit | None:
    """Return who holds the memory; None where the GPU has none of its own, or does not tell."""
    total, free = sample.total_bytes, sample.free_bytes
    if not total or free is None:
        return None
    hidden = _hidden_bytes(sample, total, free)
    processes = sample.processes or ()
    return VramSplit(
        server_bytes=_server_bytes(sample, hidden),
        others=_others(processes),
        hidden_bytes=hidden,
        free_bytes=free,
        total_bytes=total,
        usable_bytes=total - (sample.reserved_bytes or 0),
        unassigned_bytes=None
        if sample.processes is None
        else sum_if_all(p.memory_bytes for p in processes if p.is_server is None),
    )


def newest_split(samples: Iterable[GpuSample]) -> VramSplit | None:
    """Return the newest split among one GPU's samples, with processes if any of them has those.

    Memory comes at 10 Hz, processes at 1 Hz.
    """
    held = [sample for sample in samples if sample.total_bytes and sample.free_bytes is not None]
    listed = [sample for sample in held if sample.processes is not None]
    return split_vram((listed or held)[-1]) if held else None


def _server_bytes(sample: GpuSample, hidden: int | None) -> int | None:
    if sample.processes is None or any(p.is_server is None for p in sample.processes):
        return None
    mine = [p.memory_bytes for p in sample.processes if p.is_server]
    if not mine and (hidden or 0) > MODEL_BYTES:
        return None
    return sum_if_all(mine)


def _others(processes: Iterable[GpuProcess]) -> tuple[Holder, ...]:
    others = [Holder(p.name, p.pid, p.memory_bytes) for p in processes if p.is_server is False]
    return tuple(sorted(others, key=lambda other: -(other.memory_bytes or 0)))


def _hidden_bytes(sample: GpuSample, total: int, free: int) -> int | None:
    if sample.processes is None or sample.reserved_bytes is None:
        return None
    listed = sum_if_all(p.memory_bytes for p in sample.processes)
    if listed is None:
        return None
    hidden = total - free - sample.reserved_bytes - listed
    return None if hidden < -SKEW_RATIO * total else max(hidden, 0)


def sum_if_all(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the counts is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
