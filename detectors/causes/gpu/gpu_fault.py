"""The GPU or its driver reported an error while this request ran.

Signal:
During the request the driver reported a critical error (Xid), an uncorrected memory error or a
remapped memory row, or lost the GPU. Such an error rarely makes a request slow: requests stop, or
stall once. So slowtok charges time to it only where tokens stopped at that moment, came more slowly
from then on, or came slowly all along after an error at the beginning, which is less sure.
Otherwise it reports the error in addition to the verdict, unless the error was a program's own and
the answer came whole.

Not to be confused with:
- Earlier errors do not count: the driver counts since it was loaded, or since the card was made.
- Xid 13, 31, 43 and 45 are mostly a program's own error, perhaps another program's: they slow
  nothing down, and say nothing of an answer that came whole.
- `clocks-stuck`: a GPU may be in that state after such an error, without a new one.

Remedy:
Choose by the error: restart the engine, reset the GPU, reboot, check slot, cables and power, or
replace the GPU.

Sources:
- NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors) and Dynamic Page Retirement.
- noonghunna/club-3090 docs/HARDWARE.md (AMD hosts: Xid 154 with tensor parallelism, iommu=pt).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, gained, gpu_facts, newest
from slowtok.detectors.analysis.measured_loss import engine_stalls
from slowtok.detectors.analysis.phase_loss import decode_excess_s, is_cut_short, judge_decode
from slowtok.detectors.analysis.placement.remedies import steps
from slowtok.detectors.analysis.rate_shape import step_of
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import UNNAMED, Evidence, EvidenceKind, Finding, Traits, weigh
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.case.named_facts import label

TITLE = "GPU error"
TRAITS = Traits(requires="gpu")

STALLED = "; the answer stopped there and {lost} were lost"
SLOWED = "; the answer came more slowly from then on, and decode lost about {lost}"
SLOW = "; it came at the beginning, and the answer was slow from then on: decode lost about {lost}"
NOTHING = ", which cost it no time that can be seen"


class Cost(NamedTuple):
    """What an error cost, in words with `{lost}`, and what shows it."""

    lost_s: float
    said: str
    proof: tuple[EvidenceKind, ...]
    proof_s: float = 0.0


# Errors that a GPU or its driver reported while a request ran, and what they mean.
#
# Source: NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors) and Dynamic Page Retirement.

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
Heuristic."""


class _Fault(NamedTuple):
    """What was reported, and between which two moments."""

    said: str
    remedy: str
    name: str
    errors: float
    from_s: float
    to_s: float
    by_program: bool = False


def detect(case: Case) -> Finding | None:
    """Fire at each new error; it is charged with what happened to the answer there."""
    mine = case.server.gpu_indices
    if case.server.local is False or case.server.gpu_layers == 0 or mine == () or not case.gpu:
        return None
    for index, samples in by_gpu([s for s in case.gpu if not mine or s.index in mine]).items():
        fault = _new_fault(samples) or _lost_gpu(case, index, samples)
        if fault is not None:
            return _finding(case, index, fault)
    return None


def _cost(case: Case, fault: _Fault) -> Cost:
    stalls = engine_stalls(case)
    stalled_s = sum(s.gap_s for s in stalls if _is_at(fault, s.end_s - s.gap_s, s.end_s))
    if stalled_s > 0:
        return Cost(stalled_s, STALLED, ("counter", "gauge"), stalled_s)
    if fault.by_program or not judge_decode(case).slow:
        return Cost(0.0, NOTHING, ("counter",))
    lost_s, step, window = decode_excess_s(case) or 0.0, step_of(case), case.window("decode")
    if step is not None and window is not None and step.after_tps < step.before_tps:
        if _is_at(fault, step.at_s, step.at_s):
            after_s = max(window[1] - step.at_s, 0.0)
            fell_s = after_s * (1 - step.after_tps / step.before_tps)
            return Cost(fell_s, SLOWED, ("counter", "gauge"))
    elif window is not None and fault.to_s <= window[0] + NEAR_S and lost_s > 0:
        return Cost(lost_s, SLOW, ("gauge", "inference"))
    return Cost(0.0, NOTHING, ("counter",))


def _is_at(fault: _Fault, begin_s: float, end_s: float) -> bool:
    return begin_s <= fault.to_s + NEAR_S and end_s >= fault.from_s - NEAR_S


def _finding(case: Case, index: int, fault: _Fault) -> Finding:
    cost = _cost(case, fault)
    if fault.by_program and cost.lost_s <= 0 and not is_cut_short(case):
        return UNNAMED  # another program's, as far as this answer goes
    perhaps = ", perhaps of another program" if fault.by_program else ""
    return Finding(
        phase="decode",
        confidence=weigh(*cost.proof),
        lost_s=cost.lost_s,
        informational=cost.lost_s <= 0,
        summary=(
            f"{label(gpu_facts(case, index))} reported an error during this request{perhaps} "
            f"({fault.said}){cost.said}."
        ),
        remedy=steps(fault.remedy.format(index=index)),
        evidence=(
            Evidence(name=fault.name, value=fault.errors, unit="", limit=0),
            Evidence(name="lost with it", value=cost.lost_s, unit="s"),
        ),
        proof_s=cost.proof_s,
    )


def _new_fault(samples: Sequence[GpuSample]) -> _Fault | None:
    """Return the error that was counted within one GPU's samples, the worst kind first."""
    if count := gained(samples, lambda s: s.xids):
        xid = int(newest(samples, lambda s: s.xid) or 0)
        said, remedy = XIDS.get(xid, ("see NVIDIA's catalogue", f"{RESET}; {REPLACE}"))
        times = _when(samples, [s.xids for s in samples])
        return _Fault(
            f"Xid {xid}: {said}", remedy, "critical errors", count, *times, xid in BY_PROGRAMS
        )
    if count := gained(samples, lambda s: s.ecc_errors):
        times = _when(samples, [s.ecc_errors for s in samples])
        said = "1 uncorrectable memory error"
        if count != 1:
            said = f"{count:,.0f} uncorrectable memory errors"
        return _Fault(said, f"{RESET}; {REPLACE}", "memory errors", count, *times)
    if count := gained(samples, lambda s: s.remapped_rows):
        times = _when(samples, [s.remapped_rows for s in samples])
        said = "1 bad memory row was remapped"
        if count != 1:
            said = f"{count:,.0f} bad memory rows were remapped"
        return _Fault(said, XIDS[63][1], "remapped rows", count, *times)
    return None


def _when(samples: Sequence[GpuSample], counts: Sequence[int | None]) -> tuple[float, float]:
    """Return when a count was last as at first, and when it was first higher."""
    known = [(s.at_s, c) for s, c in zip(samples, counts, strict=True) if c is not None]
    later = [at_s for at_s, count in known if count > known[0][1]]
    before = [at_s for at_s, count in known if count == known[0][1]]
    return max(before), min(later)


def _lost_gpu(case: Case, index: int, samples: Sequence[GpuSample]) -> _Fault | None:
    """Return the loss of the GPU: its samples end before the request, and the driver says so."""
    reason, end_s = case.device.gpus_reason or "", case.timeline.ended_at_s
    end_s = end_s or case.timeline.last_byte_at_s
    if not any(f"GPU {index}: {word}" in reason for word in LOST) or end_s is None:
        return None
    last_s = samples[-1].at_s
    if end_s - last_s < NEAR_S:
        return None
    return _Fault("the driver lost the GPU", SEAT, "GPUs lost", 1, last_s, end_s)
