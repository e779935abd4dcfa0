"""The GPU or its driver reported an error while this request ran.

Signal:
A critical error of the driver (Xid), an uncorrected memory error, or a remapped memory row that
came during the request, or a GPU that was lost. It rarely makes a request slow: requests stop, or
stall once. So time is charged to it only where tokens stopped at that moment; otherwise it is told
beside the verdict.

Not to be confused with:
- Errors of before: the driver's counts are since it was loaded, or since the card was made.
- Xid 13, 31, 43 and 45 are mostly a program's own error, perhaps another program's.
- `clocks-stuck`: what a GPU may be after such an error, without a new one.

Remedy:
By the error: restart the engine, reset the GPU, reboot, look at slot, cables and power, replace it.

Sources:
- NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors) and Dynamic Page Retirement.
- noonghunna/club-3090 docs/HARDWARE.md (AMD hosts: Xid 154 with tensor parallelism, iommu=pt).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slowtok.detectors.case import Case
from slowtok.detectors.facts import label
from slowtok.detectors.finding import Channel, Evidence, Finding, weigh
from slowtok.detectors.gpu_window import by_gpu, facts_of, gained, newest
from slowtok.detectors.machine import GpuSample
from slowtok.detectors.shape import Stall, stalls_of

TITLE = "GPU error"

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
    79: ("the GPU fell off the bus", SEAT),
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
"""How far a stall's end may be from the error: health is asked once a second, and takes its time.
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


def detect(case: Case) -> Finding | None:
    """Fire at each new error; it is charged with the stalls that came with it."""
    mine = case.server.gpu_indices
    if case.server.local is False or case.server.gpu_layers == 0 or mine == ():
        return None
    for index, samples in by_gpu([s for s in case.gpu if not mine or s.index in mine]).items():
        fault = _fault(samples) or _loss(case, index, samples)
        if fault is not None:
            return _finding(case, index, fault)
    return None


def _fault(samples: Sequence[GpuSample]) -> Fault | None:
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


def _loss(case: Case, index: int, samples: Sequence[GpuSample]) -> Fault | None:
    """Return the loss of the GPU: its samples end before the request, and the driver says so."""
    reason, end_s = case.device.gpus_reason or "", case.timeline.ended_at_s
    end_s = end_s or case.timeline.last_byte_at_s
    if not any(f"GPU {index}: {word}" in reason for word in LOST) or end_s is None:
        return None
    last_s = samples[-1].at_s
    if end_s - last_s < NEAR_S:
        return None
    return Fault("the driver lost the GPU", SEAT, "GPUs lost", 1, last_s, end_s)


def _finding(case: Case, index: int, fault: Fault) -> Finding:
    stalls = [s for s in stalls_of(case) if _is_at(s, fault)]
    stalled_s = sum(stall.gap_s for stall in stalls)
    proof: tuple[Channel, ...] = ("counter", "gauge") if stalls else ("counter",)
    told = "; the answer stopped there and {lost} were lost" if stalls else ""
    perhaps = ", perhaps of another program" if fault.by_program else ""
    remedy = fault.remedy.format(index=index)
    return Finding(
        phase="decode",
        confidence=weigh(*proof),
        lost_s=stalled_s,
        informational=not stalls,
        summary=(
            f"{label(facts_of(case, index))} reported an error during this request{perhaps} "
            f"({fault.said}){told or ', which cost it no time that can be seen'}."
        ),
        remedy=f"{remedy[0].upper()}{remedy[1:]}.",
        evidence=(
            Evidence(name=fault.name, value=fault.errors, unit="errors", limit=0),
            Evidence(name="stalls with it", value=stalled_s, unit="s"),
        ),
    )


def _is_at(stall: Stall, fault: Fault) -> bool:
    begin_s = stall.end_s - stall.gap_s
    return begin_s <= fault.to_s + NEAR_S and stall.end_s >= fault.from_s - NEAR_S
