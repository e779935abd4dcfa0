"""How much time each phase of a request lost against expectation, and whether that is slow.

The gate: a decode is slow only below the band's low edge or below 0.85 of its own baseline, with
at least 32 tokens and 2 s; a shorter one is judged only when it is clearly inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from slowtok.detectors.case import Case, Phase
from slowtok.detectors.envelope import learned_low_tps
from slowtok.detectors.finding import Finding, PhaseLoss

MIN_DECODE_TOKENS = 32
MIN_DECODE_S = 2.0
MIN_WAIT_S = 0.5  # a wait below this is not felt beside an answer; no published source
MIN_WAIT_RATIO = 0.1  # nor one that is under a tenth of the request; no published source

_CUT_SHORT = {
    "upstream-refused": "the engine could not be reached",
    "upstream-error": "the engine broke off, or reported an error",
    "timeout": "the engine did not answer in time",
    "client-gone": "the client left before the end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeJudgement:
    """The decode against its expectation; `slow` is None where it cannot be judged: `reason`."""

    slow: bool | None
    lost_s: float
    reason: str


def judge_decode(case: Case) -> DecodeJudgement:
    """Hold the decode rate against the band and against the setup's own past."""
    rate, decode_s = case.phases.decode_tps, case.phases.decode_s
    tokens = case.timeline.tokens.completion
    if _is_error(case) or rate is None or decode_s is None or tokens is None:
        return _cannot(_why_no_rate(case))
    ceiling, low = case.envelope.ceiling_tps, _low_edge(case)
    if low is None:
        because = "; ".join(case.envelope.because)
        return _cannot(because or "no expectation for this model on this hardware")
    if ceiling is not None and rate > ceiling and case.device.gpus:
        # On a CPU the ceiling is not hard: caches hold a part of small models.
        return _cannot("faster than the memory allows: speculation, or a fact is wrong")
    if rate >= low:
        return DecodeJudgement(slow=False, lost_s=0.0, reason="")
    if tokens < MIN_DECODE_TOKENS or decode_s < MIN_DECODE_S:
        return _cannot(f"too short to judge: {tokens} tokens in {decode_s:.1f} s of decode")
    expected = max(_expected(case) or low, low)  # a baseline may lie below the band
    return DecodeJudgement(slow=True, lost_s=decode_s * (1 - rate / expected), reason="")


def losses(
    case: Case, decode: DecodeJudgement, findings: Mapping[str, Finding]
) -> tuple[PhaseLoss, ...]:
    """Return the loss of every phase that lost anything, decode by its gate, waits by their length.

    A prefill has no band of its own here: it is slow when a finding shows what it lost. An error
    is not slow, however long it took.
    """
    p = case.phases
    if _is_error(case):
        return ()
    waits: dict[Phase, float] = {
        "queue": p.queue_s or 0.0,
        "load": p.load_s or 0.0,
        "prefill": min(_found(findings, "prefill"), p.prefill_s or 0.0),
        "delivery": max(p.delivery_s or 0.0, _found(findings, "delivery")),
    }
    found = [
        PhaseLoss(phase=phase, lost_s=lost_s, slow=_is_long(lost_s, p.total_s))
        for phase, lost_s in waits.items()
        if lost_s > 0
    ]
    if decode.slow:
        found.append(PhaseLoss(phase="decode", lost_s=decode.lost_s, slow=True))
    return tuple(found)


def slowdown(case: Case, lost_s: float, phase: Phase) -> float:
    """Return how many times longer a phase took than it would have without `lost_s`."""
    took_s = case.phases.decode_s if phase == "decode" else case.phases.prefill_s
    if not took_s:
        return 1.0
    return took_s / max(took_s - lost_s, took_s * 0.01)


def _low_edge(case: Case) -> float | None:
    edges = []
    if case.envelope.decode is not None:
        edges.append(case.envelope.decode.low)
    learned = learned_low_tps(case.baseline)
    if learned is not None:
        edges.append(learned)
    return max(edges, default=None)


def _expected(case: Case) -> float | None:
    learned = learned_low_tps(case.baseline) is not None
    return case.baseline.decode_tps if learned else case.envelope.expected_tps


def _is_error(case: Case) -> bool:
    return (case.timeline.status or 0) >= 400


def _why_no_rate(case: Case) -> str:
    timeline, completion = case.timeline, case.timeline.tokens.completion
    if timeline.ended in _CUT_SHORT:
        return _CUT_SHORT[timeline.ended]
    if _is_error(case):
        return f"the engine answered {timeline.status}"
    if completion is None:
        return f"no token count: the request ended as {timeline.ended}"
    if case.phases.source == "estimate":
        return "the engine gave no timings and the reply was not streamed"
    if completion <= 1:
        return f"too short to judge: {completion} token{'s' if completion != 1 else ''}"
    return f"no decode time: {completion} tokens came at once"


def _cannot(reason: str) -> DecodeJudgement:
    return DecodeJudgement(slow=None, lost_s=0.0, reason=reason)


def _found(findings: Mapping[str, Finding], phase: Phase) -> float:
    return max((f.lost_s for f in findings.values() if f.phase == phase), default=0.0)


def _is_long(lost_s: float, total_s: float) -> bool:
    return lost_s >= MIN_WAIT_S and lost_s >= MIN_WAIT_RATIO * total_s
