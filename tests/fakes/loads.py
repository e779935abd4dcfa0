"""A GPU on which an engine loads its model, as its samples show it.

The card is the RTX 3090 of `fakes.gpu_cases` with 300 MiB reserved by the driver.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fakes.cases import with_phases, with_server, with_timeline
from fakes.gpu_cases import BUSY_GPU, GIB, MIB, SERVER_PID, gpu_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.machine import GpuProcess, GpuSample

TOTAL_BYTES, RESERVED_BYTES = 24 * GIB, 300 * MIB


def holding(
    at_s: float,
    server_gib: float,
    others_gib: float = 0.0,
    *,
    pid: int = SERVER_PID,
    other_is_server: bool = False,
) -> GpuSample:
    """A look at the GPU: what the server holds, and what one other process does."""
    mine = GpuProcess(pid=pid, memory_bytes=int(server_gib * GIB), is_server=True)
    other = GpuProcess(pid=900, memory_bytes=int(others_gib * GIB), is_server=other_is_server)
    return _look(at_s, mine, other)


def with_runners(at_s: float, held_gib: Mapping[int, float]) -> GpuSample:
    """A look at a GPU that only the server's processes use."""
    runners = (GpuProcess(pid=pid, memory_bytes=int(gib * GIB)) for pid, gib in held_gib.items())
    return _look(at_s, *(replace(runner, is_server=True) for runner in runners))


def _look(at_s: float, *processes: GpuProcess) -> GpuSample:
    return replace(
        BUSY_GPU,
        at_s=at_s,
        processes=tuple(p for p in processes if p.memory_bytes),
        total_bytes=TOTAL_BYTES,
        reserved_bytes=RESERVED_BYTES,
        free_bytes=TOTAL_BYTES - RESERVED_BYTES - sum(p.memory_bytes or 0 for p in processes),
    )


def request(at_s: float, samples: Iterable[GpuSample] = (), **server: Any) -> Case:
    """A healthy request that comes at this time, of 8 s."""
    case = gpu_case()
    by_s = at_s - case.timeline.accepted_at_s
    t, p = case.timeline, case.phases
    moved = with_timeline(
        case,
        accepted_at_s=at_s,
        sent_at_s=at_s,
        last_byte_at_s=(t.last_byte_at_s or 0.0) + by_s,
    )
    moved = with_phases(
        moved,
        prefill_from_at_s=at_s,
        decode_from_at_s=(p.decode_from_at_s or 0.0) + by_s,
        decode_to_at_s=(p.decode_to_at_s or 0.0) + by_s,
    )
    return with_server(replace(moved, gpu=tuple(samples)), uptime_s=None, **server)


def loading(at_s: float, load_s: float, samples: Iterable[GpuSample] = (), **server: Any) -> Case:
    """A request that waits for its model first."""
    case = request(at_s, samples, **server)
    return with_phases(case, load_s=load_s, prefill_from_at_s=at_s + load_s)
