"""Errors that a GPU or its driver reported while a request ran, and what they mean.

Source: NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors) and Dynamic Page Retirement.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slowtok.detectors.case import Case
from slowtok.detectors.gpu_window import gained, newest
from slowtok.detectors.machine import GpuSample

RESTART = "restart the engine; if it comes again, update driver and engine"
RESET = "stop the engine and reset the GPU (sudo nvidia-smi -r -i {index}) or reboot"
SEAT = "reboot; then check the GPU's slot, riser and power cables"
REPLACE = "if it comes again, have the card tested and replaced"

XIDS: Mapping[int, tuple[str, str]] = {
    13: ("a program's kernel raised an exception", RESTART),
    31: ("a program touched memory that is not its own", RESTART),
    43: ("a program's work was stopped", RESTART),
    45: ("a program's work was cleared away after an error", RESTART),
    48: ("an uncorrectable memory error", f"{RESET}; {REPLACE}"),
    62: ("the GPU's controller halted", f"{RESET}; {REPLACE}"),
    63: ("a bad memory row was remapped", f"{RESET} at a good time, so that it takes effect"),
    64: ("a bad memory row could not be remapped", f"{RESET}; {REPLACE}"),
    74: ("a link between GPUs (NVLink) had errors", f"{SEAT}; {REPLACE}"),
    79: ("the GPU fell off the bus", SEAT),
    92: ("very many memory errors that could be corrected", f"{RESET}; {REPLACE}"),
    94: ("a memory error that was contained", "restart the engine, and reset the GPU when idle"),
    95: ("a memory error that was not contained", f"{RESET}; {REPLACE}"),
    119: ("the GPU's system processor did not answer the driver", f"{RESET}; update the driver"),
    154: ("the GPU asks for a recovery", f"{RESET}; on AMD hosts try the kernel option iommu=pt"),
}
"""What NVIDIA's documents say of the common ones, in short."""

BY_PROGRAMS = frozenset({13, 31, 43, 45})
LOST = ("GPU is lost", "GPU needs a reset", "GPU not found")
"""As NVML's errors 15, 16 and 28 are told in `gpus_reason`."""

NEAR_S = 3.0
"""How far what it cost may be from the error: health is asked once a second, and takes its time.
No published source."""


class Fault(NamedTuple):
    """What was reported, and between which two moments."""

    said: str
    remedy: str
    name: str
    errors: float
    from_s: float
    to_s: float
    by_program: bool = False


def new_fault(samples: Sequence[GpuSample]) -> Fault | None:
    """Return the error that was counted within one GPU's samples, the worst kind first."""
    if count := gained(samples, lambda s: s.xids):
        xid = int(newest(samples, lambda s: s.xid) or 0)
        said, remedy = XIDS.get(xid, ("see NVIDIA's catalogue", f"{RESET}; {REPLACE}"))
        times = _when(samples, [s.xids for s in samples])
        return Fault(
            f"Xid {xid}: {said}", remedy, "critical errors", count, *times, xid in BY_PROGRAMS
        )
    if count := gained(samples, lambda s: s.ecc_errors):
        times = _when(samples, [s.ecc_errors for s in samples])
        said = f"{count:.0f} uncorrectable memory errors"
        return Fault(said, f"{RESET}; {REPLACE}", "memory errors", count, *times)
    if count := gained(samples, lambda s: s.remapped_rows):
        times = _when(samples, [s.remapped_rows for s in samples])
        said = f"{count:.0f} bad memory rows were remapped"
        return Fault(said, XIDS[63][1], "remapped rows", count, *times)
    return None


def _when(samples: Sequence[GpuSample], counts: Sequence[int | None]) -> tuple[float, float]:
    """Return when a count was last as at first, and when it was first higher."""
    known = [(s.at_s, c) for s, c in zip(samples, counts, strict=True) if c is not None]
    later = [at_s for at_s, count in known if count > known[0][1]]
    before = [at_s for at_s, count in known if count == known[0][1]]
    return max(before), min(later)


def lost_gpu(case: Case, index: int, samples: Sequence[GpuSample]) -> Fault | None:
    """Return the loss of the GPU: its samples end before the request, and the driver says so."""
    reason, end_s = case.device.gpus_reason or "", case.timeline.ended_at_s
    end_s = end_s or case.timeline.last_byte_at_s
    if not any(f"GPU {index}: {word}" in reason for word in LOST) or end_s is None:
        return None
    last_s = samples[-1].at_s
    if end_s - last_s < NEAR_S:
        return None
    return Fault("the driver lost the GPU", SEAT, "GPUs lost", 1, last_s, end_s)
