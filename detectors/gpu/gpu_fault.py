"""The GPU or its driver reported an error while this request ran.

Signal:
A critical error of the driver (Xid), an uncorrected memory error, or a remapped memory row that
came during the request, or a GPU that was lost. It rarely makes a request slow: requests stop, or
stall once. So time is charged to it only where tokens stopped at that moment, came more slowly from
then on, or came slowly all along after an error at the beginning, which is less sure; otherwise it
is told beside the verdict.

Not to be confused with:
- Errors of before: the driver's counts are since it was loaded, or since the card was made.
- Xid 13, 31, 43 and 45 are mostly a program's own error, perhaps another program's: they slow
  nothing down.
- `clocks-stuck`: what a GPU may be after such an error, without a new one.

Remedy:
By the error: restart the engine, reset the GPU, reboot, look at slot, cables and power, replace it.

Sources:
- NVIDIA, Xid Errors (docs.nvidia.com/deploy/xid-errors) and Dynamic Page Retirement.
- noonghunna/club-3090 docs/HARDWARE.md (AMD hosts: Xid 154 with tensor parallelism, iommu=pt).
"""

from typing import NamedTuple

from slowtok.detectors.case import Case
from slowtok.detectors.excess import excess
from slowtok.detectors.facts import label
from slowtok.detectors.finding import Channel, Evidence, Finding, weigh
from slowtok.detectors.gpu_errors import NEAR_S, Fault, lost_gpu, new_fault
from slowtok.detectors.gpu_window import by_gpu, facts_of
from slowtok.detectors.measured_loss import engine_stalls
from slowtok.detectors.phases import judge_decode
from slowtok.detectors.shape import step_of

TITLE = "GPU error"

STALLED = "; the answer stopped there and {lost} were lost"
SLOWED = "; the answer came more slowly from then on, and decode lost about {lost}"
SLOW = "; it came at the beginning, and the answer was slow from then on: decode lost about {lost}"
NOTHING = ", which cost it no time that can be seen"


class Cost(NamedTuple):
    """What an error cost, in words with `{lost}`, and what shows it."""

    lost_s: float
    said: str
    proof: tuple[Channel, ...]
    proof_s: float = 0.0


def detect(case: Case) -> Finding | None:
    """Fire at each new error; it is charged with what happened to the answer there."""
    mine = case.server.gpu_indices
    if case.server.local is False or case.server.gpu_layers == 0 or mine == () or not case.gpu:
        return None
    for index, samples in by_gpu([s for s in case.gpu if not mine or s.index in mine]).items():
        fault = new_fault(samples) or lost_gpu(case, index, samples)
        if fault is not None:
            return _finding(case, index, fault)
    return None


def _cost(case: Case, fault: Fault) -> Cost:
    stalls = engine_stalls(case)
    stalled_s = sum(s.gap_s for s in stalls if _is_at(fault, s.end_s - s.gap_s, s.end_s))
    if stalled_s > 0:
        return Cost(stalled_s, STALLED, ("counter", "gauge"), stalled_s)
    if fault.by_program or not judge_decode(case).slow:
        return Cost(0.0, NOTHING, ("counter",))
    lost_s, step, window = excess(case) or 0.0, step_of(case), case.window("decode")
    if step is not None and window is not None and step.after_tps < step.before_tps:
        if _is_at(fault, step.at_s, step.at_s):
            after_s = max(window[1] - step.at_s, 0.0)
            fell_s = after_s * (1 - step.after_tps / step.before_tps)
            return Cost(fell_s, SLOWED, ("counter", "gauge"))
    elif window is not None and fault.to_s <= window[0] + NEAR_S and lost_s > 0:
        return Cost(lost_s, SLOW, ("gauge", "inference"))
    return Cost(0.0, NOTHING, ("counter",))


def _is_at(fault: Fault, begin_s: float, end_s: float) -> bool:
    return begin_s <= fault.to_s + NEAR_S and end_s >= fault.from_s - NEAR_S


def _finding(case: Case, index: int, fault: Fault) -> Finding:
    cost = _cost(case, fault)
    perhaps = ", perhaps of another program" if fault.by_program else ""
    remedy = fault.remedy.format(index=index)
    return Finding(
        phase="decode",
        confidence=weigh(*cost.proof),
        lost_s=cost.lost_s,
        informational=cost.lost_s <= 0,
        summary=(
            f"{label(facts_of(case, index))} reported an error during this request{perhaps} "
            f"({fault.said}){cost.said}."
        ),
        remedy=f"{remedy[0].upper()}{remedy[1:]}.",
        evidence=(
            Evidence(name=fault.name, value=fault.errors, unit="errors", limit=0),
            Evidence(name="lost with it", value=cost.lost_s, unit="s"),
        ),
        proof_s=cost.proof_s,
    )
