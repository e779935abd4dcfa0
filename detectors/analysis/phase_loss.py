"""The verdict on each phase: the time it lost against its expectation, and whether that is slow.

The gate: a decode is slow by its rate below the band's low edge or below its own healthy past,
also that on another build of the engine (0.70 of it after one such request, 0.75 after three, 0.85
after five), with enough tokens for the distance to be certain; or by a loss that was measured,
whatever is expected (`measured_loss`). A
prefill is slow below its band, or below half of its own best, with at least 256 tokens to compute
and 2 s. Every phase is slow where a finding shows what it lost, or counts it.
"""

import math
from collections.abc import Mapping

from slowtok.detectors.analysis.host_window import decode_s
from slowtok.detectors.analysis.measured_loss import answers, is_fairly_healthy, measured_loss
from slowtok.detectors.case.case import Baseline, Case, ModelLoad, Phase
from slowtok.detectors.case.ending import CUT_SHORT
from slowtok.detectors.case.finding import Finding, PhaseLoss, number
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.case.value import frozen_dataclass
from slowtok.detectors.expectation.envelope import learned_low_tps
from slowtok.detectors.expectation.learned import is_possible
from slowtok.detectors.expectation.speculation import drafts_of, speculates

MIN_DECODE_TOKENS = 32
MIN_DECODE_S = 2.0
UNCERTAINTY = 3.0
"""A shorter decode of n tokens is judged where its rate is below the edge even when it is raised by
this many standard errors of n gaps that scatter as much as they last. Heuristic."""

ALONE_SEQUENCES = 0.1
"""So many others that decode, on the mean, still leave a request alone: its rate is held against
rates of other times. Heuristic."""

PROVEN_RATIO = 0.3
"""A phase is slow where what something counted makes up this much of it. Heuristic."""

WIDE_RATIO = 4.0
"""Between the edges of an expectation that says next to nothing: half of the rate is lost before it
shows. Heuristic."""

RECENT_LEAD_RATIO = 1.25
"""From here on the setup's own recent rate tells what is new in a slow request. Heuristic."""

MIN_PREFILL_TOKENS = 256  # fewer are few passes over the weights, and say little about a rate
MIN_PREFILL_S = 2.0
OWN_PREFILL_RATIO = 0.5  # of the best of its own past; heuristic ...
OWN_PREFILL_TOKENS = 4096  # ... where attention to a longer context has not halved the rate yet
FRESH_LOAD_S = 10.0  # after a load the first request warms caches and kernels up; no source
MIN_LOAD_S = 1.0  # a warm Ollama reports tens of milliseconds (ollama/ollama#12443)
MIN_WAIT_S = 0.5  # a wait below this is not felt beside an answer; heuristic
MIN_WAIT_RATIO = 0.1  # nor one that is under a tenth of the request; heuristic

_TOO_FAST = (
    "faster than the memory allows: either the engine decodes speculatively, or slowtok has a "
    "wrong fact about the model or the GPU"
)
_DRAFTS_UNKNOWN = (
    "the engine decodes speculatively and does not tell how many of its drafts were accepted"
)
_SEVERAL = "there were several answers, and how long each of them was is not known"


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class DecodeJudgement:
    """The decode against its expectation; `slow` is None where it cannot be judged: `reason`.

    `lost_s` is the loss against the middle of what is expected. That middle is a model's, so
    `least_lost_s` is what is certain: the loss against the edge of the expectation, or against
    what this setup gave just before, whichever is less. A cause that explains it explains enough.
    """

    slow: bool | None
    lost_s: float
    reason: str
    least_lost_s: float = 0.0


# What decode took beyond expectation, and predictions that are a range.
#
# Where physics gives only a range of what a cause costs, and the cause itself is proven by other
# evidence, the value in the range that is nearest to what happened is taken: never more than the
# range allows, and never less.

MAX_LOST_RATIO = 0.97
"""No cause is said to have taken all of a decode that did happen."""


@cached_for_last_case
def judge_decode(case: Case) -> DecodeJudgement:
    """Hold the decode rate against the band, the setup's own past, and what was measured."""
    by_rate = judge_rate(case)
    measured = None if is_error(case) else measured_loss(case)
    if measured is None:
        return by_rate
    if not by_rate.slow:
        if not _is_long("decode", measured.lost_s, case.phases.total_s):
            return by_rate
        lost_s = measured.lost_s
        return DecodeJudgement(slow=True, lost_s=lost_s, reason="", least_lost_s=lost_s)
    lost_s = max(by_rate.lost_s, measured.lost_s)
    return DecodeJudgement(
        slow=True, lost_s=lost_s, reason="", least_lost_s=min(by_rate.least_lost_s, lost_s)
    )


def judge_rate(case: Case) -> DecodeJudgement:
    """Hold the decode rate against the band and the setup's own past alone."""
    rate, decode_s = case.phases.decode_tps, case.phases.decode_s
    tokens = case.timeline.tokens.completion
    if is_error(case) or rate is None or decode_s is None or tokens is None:
        return _without_rate(case)
    low = _low_edge(case)
    if low is None:
        return _cannot(_why_no_expectation(case))
    if rate >= low:
        return _not_below(case, rate)
    if unclear := _says_too_little(case, tokens, decode_s, low):
        return _cannot(unclear)
    expected = max(expected_decode_tps(case) or low, low)  # a baseline may lie below the band
    return DecodeJudgement(
        slow=True,
        lost_s=decode_s * (1 - rate / expected),
        reason="",
        least_lost_s=decode_s * (1 - rate / _certain_tps(case, rate, low, expected)),
    )


def _not_below(case: Case, rate: float) -> DecodeJudgement:
    """Judge a rate that is not below what it is held against."""
    ceiling = case.envelope.ceiling_tps
    if ceiling is not None and rate > ceiling and case.device.gpus:
        return _cannot(_TOO_FAST)  # RAM is no ceiling: what was measured of it is a lower bound
    usual = case.baseline.decode_tps  # without a band the low edge came from it
    if case.envelope.decode is None and usual is not None:
        before = f"as fast as before ({number(usual)} tokens/s)"
        return _cannot(f"{before}, but {_why_no_expectation(case)}")
    return DecodeJudgement(slow=False, lost_s=0.0, reason="")


def _why_no_expectation(case: Case) -> str:
    because = "; ".join(case.envelope.because)
    return because or "there is no expectation for this model on this hardware"


def _certain_tps(case: Case, rate: float, low: float, expected: float) -> float:
    """Return the least rate that would have been all right: in the band, or as it was just before.

    Where the setup has a healthy past of its own, that is known better than by the gate's ratio.
    """
    certain = [expected if _learned(case) is not None else low]
    usual = case.baseline.usual_decode_tps
    if usual is not None and usual >= RECENT_LEAD_RATIO * rate:
        certain.append(usual)
    return max(min(certain), rate)


def standing_lost_s(case: Case) -> float | None:
    """Return the part of a slow decode's loss that this setup always has; None where not known.

    What begins now explains the rest. It is known where requests just before, on the same process
    and load of the engine, were clearly faster than this one.
    """
    rate, decode_s = case.phases.decode_tps, case.phases.decode_s
    usual, expected = case.baseline.usual_decode_tps, expected_decode_tps(case)
    if not rate or not decode_s or usual is None or usual < RECENT_LEAD_RATIO * rate:
        return None
    if expected is None or usual >= expected:
        return 0.0
    return decode_s * rate * (1 / usual - 1 / expected)


def _without_rate(case: Case) -> DecodeJudgement:
    """Judge the prefill alone where nothing was to be generated, as for embeddings."""
    if is_error(case) or is_cut_short(case) or case.timeline.tokens.completion != 0:
        return _cannot(_why_no_rate(case))
    rate, low_tps = case.phases.prefill_tps, _expected_prefill(case)[0]
    if rate is None or not low_tps:
        return _cannot("nothing was generated, and there is no expectation for the prefill")
    if rate < low_tps and not is_telling_prefill(case):
        return _cannot("nothing was generated, and too little is known of the prefill")
    return DecodeJudgement(slow=False, lost_s=0.0, reason="")


def _says_too_little(case: Case, tokens: int, decode_s: float, low_tps: float) -> str | None:
    passed_s = min(decode_s, case.phases.total_s)  # an engine may claim more
    is_long = tokens >= MIN_DECODE_TOKENS and passed_s >= MIN_DECODE_S
    if not is_long and not _is_clearly_slow(case, tokens - 1, decode_s, low_tps):
        return f"too short to judge: {tokens} tokens in {decode_s:.1f} s of decode"
    if speculates(case) and drafts_of(case) is None:
        return _DRAFTS_UNKNOWN
    if answers(case) > 1 and tokens >= low_tps * decode_s:
        return _SEVERAL  # the longest of them may be most of the tokens
    return None


def _is_clearly_slow(case: Case, gaps: int, decode_s: float, low_tps: float) -> bool:
    """Return True if a short decode is slow whatever its gaps scatter, and long enough to feel."""
    rate = case.phases.decode_tps or 0.0
    if gaps < 1 or rate * (1 + UNCERTAINTY / math.sqrt(gaps)) >= low_tps:
        return False
    return _is_long("decode", decode_s * (1 - rate / low_tps), case.phases.total_s)


def losses(
    case: Case, decode: DecodeJudgement, findings: Mapping[str, Finding]
) -> tuple[PhaseLoss, ...]:
    """Return the loss of every phase that lost anything, decode by its gate, waits by their length.

    A prefill lost what it took beyond its expectation, or what a finding shows, if that is more. An
    error is not slow, however long it took.
    """
    p = case.phases
    prefill_s, delivery_s = prefill_excess_s(case), p.delivery_s or 0.0
    for finding in findings.values():
        if finding.phase == "prefill":
            prefill_s = max(prefill_s, finding.lost_s)
        elif finding.phase == "delivery":
            delivery_s = max(delivery_s, finding.lost_s)
    waits: tuple[tuple[Phase, float], ...] = (
        ("queue", p.queue_s or 0.0),
        ("load", p.load_s or 0.0),
        ("prefill", min(prefill_s, p.prefill_s or 0.0)),
        ("delivery", delivery_s),
    )
    found = []
    for phase, lost_s in waits:
        if lost_s > 0:
            slow = _is_long(phase, lost_s, p.total_s)
            least_s = _certain_prefill_s(case, lost_s) if phase == "prefill" else lost_s
            found.append(PhaseLoss(phase=phase, lost_s=lost_s, slow=slow, least_lost_s=least_s))
    proven_s = _proven_decode_s(case, decode, findings)
    if decode.slow or proven_s > 0:
        least_s = proven_s or decode.least_lost_s
        lost_s = max(decode.lost_s, proven_s)
        found.append(PhaseLoss(phase="decode", lost_s=lost_s, slow=True, least_lost_s=least_s))
    return tuple(found)


def _proven_decode_s(case: Case, decode: DecodeJudgement, findings: Mapping[str, Finding]) -> float:
    """Return what was counted as lost of a decode that its rate does not show to be slow.

    Nothing where the setup gave as much when it was healthy: a counter that costs nothing.
    """
    took_s, rate = case.phases.decode_s, case.phases.decode_tps
    if decode.slow or not took_s or not rate or is_fairly_healthy(case.baseline, rate):
        return 0.0
    proven = (f.proof_s for f in findings.values() if f.phase == "decode")
    most_s = min(max(proven, default=0.0), took_s)
    is_felt = most_s >= PROVEN_RATIO * took_s and _is_long("decode", most_s, case.phases.total_s)
    return most_s if is_felt else 0.0


def prefill_excess_s(case: Case) -> float:
    """Return what a prefill took beyond its expectation; 0 where it was not slow for sure.

    Not judged are a prefill beside other requests, one right after a load, and one whose time is
    not the engine's own word: the wait for the first token may hold more than that.
    """
    rate, took_s = case.phases.prefill_tps, case.phases.prefill_s
    if rate is None or took_s is None or took_s < MIN_PREFILL_S:
        return 0.0
    low_tps, expected_tps = _expected_prefill(case)
    if rate >= low_tps or not is_telling_prefill(case):
        return 0.0
    return took_s * (1 - rate / expected_tps)


def _certain_prefill_s(case: Case, lost_s: float) -> float:
    """Return the part of a prefill's loss that is certain: against the edge of its expectation."""
    rate, took_s = case.phases.prefill_tps, case.phases.prefill_s
    low_tps = _expected_prefill(case)[0]
    if prefill_excess_s(case) <= 0 or not rate or not took_s or not low_tps:
        return lost_s  # a finding shows it
    return min(took_s * (1 - rate / low_tps), lost_s)


def _expected_prefill(case: Case) -> tuple[float, float]:
    """Return the rate below which a prefill is slow, and the one expected; 0 where not known."""
    band, middle = case.envelope.prefill, case.envelope.expected_prefill_tps
    edges = [(0.0, 0.0)]
    if band is not None:
        edges.append((band.low, middle or band.low))
    best = case.history.best_prefill_tps
    if best is not None and (case.timeline.tokens.prompt or 0) <= OWN_PREFILL_TOKENS:
        edges.append((OWN_PREFILL_RATIO * best, best))
    return max(edges)


def is_telling_prefill(case: Case) -> bool:
    """Return True if a prefill's time is that of its tokens alone, and enough of it."""
    p, n, activity = case.phases, case.neighbours, case.activity
    if is_error(case) or p.source not in ("engine", "metrics"):
        return False
    if (case.timeline.tokens.processed or 0) < MIN_PREFILL_TOKENS:
        return False
    beside = n.in_flight_at_send > 0 or n.decode_max > 0 or bool(n.prefill.others_reading_ratio)
    if activity is not None:
        beside = beside or activity.alone is False or (activity.running_max or 0) > 1
    loaded = case.server.slept or (p.load_s or 0.0) >= MIN_LOAD_S
    # however much there is to warm up, a prefill that lasts longer than that is slow by itself
    warms_up = (p.prefill_s or 0.0) < FRESH_LOAD_S
    fresh = warms_up and any(_is_fresh(load) for load in case.history.loads[:1])
    return (p.prefill_s or 0.0) >= MIN_PREFILL_S and not (beside or loaded or fresh)


def _is_fresh(load: ModelLoad) -> bool:
    """Return True if nobody warmed it up yet; a load with a time of its own had a request wait."""
    return load.age_s < FRESH_LOAD_S and load.load_s is None


def slowdown(case: Case, lost_s: float, phase: Phase) -> float:
    """Return how many times longer a phase took than it would have without `lost_s`."""
    took_s = case.phases.decode_s if phase == "decode" else case.phases.prefill_s
    if not took_s:
        return 1.0
    return took_s / max(took_s - lost_s, took_s * 0.01)


def _low_edge(case: Case) -> float | None:
    band, learned, other = case.envelope.decode, _learned(case), other_build(case)
    edges = [
        band.low if band is not None else None,
        None if learned is None else learned_low_tps(learned),
        None if other is None else learned_low_tps(other),
    ]
    return max((edge for edge in edges if edge is not None), default=None)


def expected_decode_tps(case: Case) -> float | None:
    """Return the rate that decode is held against: what this setup gave before, or should give."""
    learned, other = _learned(case), other_build(case)
    expected = case.envelope.expected_tps if learned is None else learned.decode_tps
    if other is None or other.decode_tps is None:
        return expected
    return max(expected or 0.0, other.decode_tps)


def other_build(case: Case) -> Baseline | None:
    """Return what the same setup gave with another build of the engine; None where that is silent.

    The same rules hold as for its own past.
    """
    history, version = case.history, case.server.version
    if history.other_version_decode_tps is None or version in (None, history.other_version):
        return None
    if speculates(case) or not is_possible(case.envelope, history.other_version_decode_tps):
        return None
    return Baseline(count=history.other_version_count, decode_tps=history.other_version_decode_tps)


def _learned(case: Case) -> Baseline | None:
    """Return the baseline, unless it says too little, or lies outside what physics expects."""
    learned = case.baseline
    if learned.decode_tps is None or learned_low_tps(learned) is None:
        return None
    if speculates(case):
        return None  # other text gives other rates where tokens are drafted
    if not is_possible(case.envelope, learned.decode_tps):
        return None  # a machine that was always slow, or a GPU that is not visible
    return learned


def wide_expectation(case: Case) -> str | None:
    """Return a note on a very wide expectation, in which little of a normal decode shows."""
    band, rate = case.envelope.decode, case.phases.decode_tps
    if band is None or rate is None or _learned(case) is not None or speculates(case):
        return None
    if band.high < WIDE_RATIO * band.low:
        return None
    return (
        f"the expectation is wide ({number(band.low)} to {number(band.high)} tokens/s), so that a "
        "smaller loss would not show; it gets narrower with a few more requests, or with "
        "slowtok bench"
    )


def unexplained_wait(case: Case) -> str | None:
    """Return why a long wait for the first token cannot be judged, None where there is no such."""
    p = case.phases
    if p.queue_s is not None or p.ttft_s is None:
        return None
    if not _is_long("prefill", p.ttft_s, p.total_s):
        return None
    if p.prefill_s is not None and (p.source != "stream" or not _is_beyond(case, p.ttft_s)):
        return None
    return (
        f"the {p.ttft_s:.1f} s before the first token may be queue, load or prefill: the engine "
        "does not tell (vLLM does with --enable-per-request-metrics, Ollama from 0.35.1 on)"
    )


def _is_beyond(case: Case, wait_s: float) -> bool:
    """Return True if a wait is longer than the prompt could take at the least rate expected."""
    low_tps, tokens = _expected_prefill(case)[0], case.timeline.tokens.processed
    if not low_tps or tokens is None or tokens < MIN_PREFILL_TOKENS:
        return False
    return wait_s >= MIN_PREFILL_S and wait_s > tokens / low_tps


def is_cut_short(case: Case) -> bool:
    """Return True if a request was ended by somebody before its answer was complete."""
    return case.timeline.ended in CUT_SHORT


def is_error(case: Case) -> bool:
    """Return True if the request failed: an error is never called slow, and no cause is sought."""
    return (case.timeline.status or 0) >= 400


def _why_no_rate(case: Case) -> str:
    timeline, completion = case.timeline, case.timeline.tokens.completion
    if (cut_short := CUT_SHORT.get(timeline.ended)) is not None:
        return cut_short.reason
    if is_error(case):
        return f"the engine answered with status {timeline.status}"
    if completion is None:
        return (
            f"no token count: the engine reported none, and the request ended as {timeline.ended}"
        )
    if case.phases.source == "estimate":
        return "the engine gave no timings and the reply was not streamed"
    if completion <= 1:
        return f"too short to judge: {completion} token{'s' if completion != 1 else ''}"
    return f"no decode time: all {completion:,} tokens came at once"


def _cannot(reason: str) -> DecodeJudgement:
    return DecodeJudgement(slow=None, lost_s=0.0, reason=reason)


def _is_long(phase: Phase, lost_s: float, total_s: float) -> bool:
    """Return True if a loss is felt; a request lost no more than it took, whatever is claimed."""
    least_s = MIN_LOAD_S if phase == "load" else MIN_WAIT_S
    return min(lost_s, total_s) >= least_s and lost_s >= MIN_WAIT_RATIO * total_s


def decode_excess_s(case: Case) -> float | None:
    """Return by how much decode took longer than expected, None where nothing is expected."""
    expected, rate = expected_decode_tps(case), case.phases.decode_tps
    if not expected or not rate:
        return None
    return max(decode_s(case) * (1 - rate / expected), 0.0)


def nearest_loss_s(case: Case, least_s: float, most_s: float) -> float:
    """Return the value between two predictions that is nearest to what decode lost.

    The lower one where nothing is expected here. Never more than nearly all of the decode.
    """
    excess_s = decode_excess_s(case)
    nearest_s = least_s if excess_s is None else min(max(excess_s, least_s), most_s)
    return min(nearest_s, MAX_LOST_RATIO * decode_s(case))
