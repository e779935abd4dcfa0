"""Measured loss: decode time that was lost for certain, whatever rate was expected.

A rate can lie inside a wide band, or have none, although time was lost for all to see. Three things
prove that from the request alone. States, reason bits and temperatures never do.

1. Stood still: gaps between tokens of half a second and fifteen usual gaps, which no burst made up
   for afterwards, take a tenth of the decode or more. A stall is a wait inside decode, as queue and
   load are waits before it.
2. Slower than itself: the mean rate, stalls left out, is at most 0.7 of the best rate that this
   same request held, corrected for its growing context, and clearly below its healthy past.
3. Counted by the driver: its counter of time throttled for heat, or braked, grew for a quarter of
   the decode, the clocks of that time explain at least a quarter more time per token by the least
   published sensitivity, and the rate is clearly below the middle of what is expected.

Source of the three limits: tried on all healthy and unexplained runs of an independent simulation
of 67 machines without one new alarm. The least sensitivity of decode to the processors' clock is
that of a GB10 at 799 instead of 2,418 MHz (`slowtok.detectors.analysis.gpu.clocks`).
"""

import math
from collections.abc import Sequence
from typing import Literal

from slowtok.config.efficiency import constants
from slowtok.detectors.analysis.gpu.clocks import SmShare, decodes_on_gpu, healthy, lost_ratio
from slowtok.detectors.analysis.gpu.gpu_window import by_gpu, gained_ratio, gpu_facts
from slowtok.detectors.analysis.rate_shape import (
    MIN_STALL_GAPS,
    ONE_STEP_S,
    Stall,
    best_stretch,
    gaps_of,
    stalls_of,
    usual_gap_s,
)
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.case.clocks_event import HARMLESS_BITS
from slowtok.detectors.case.machine import GpuSample
from slowtok.detectors.case.memo import cached_for_last_case
from slowtok.detectors.case.value import frozen_dataclass
from slowtok.detectors.expectation.speculation import speculates

Kind = Literal["stood still", "slower than itself", "counted"]

MIN_STALLED_RATIO = 0.1
MAX_OF_BEST_RATIO = 0.7
MIN_COUNTED_RATIO = 0.25
MIN_CLOCK_SLOWDOWN = 1.25
MAX_OF_EXPECTED_RATIO = 0.85
LEAST_SM_SHARE: SmShare = {"decode": 0.37, "prefill": 0.8}
"""Source: the docstring above."""

MAX_TOKENS_PER_READ = 1.5
"""Where reads carry more tokens than this, gaps between them are not gaps between tokens."""

MAX_OF_ONE_STEP_RATIO = 0.2
"""Where more of the gaps are inside a step, how much a step brings sets the rate: drafts that are
accepted or not, answers that end one after another. Heuristic."""

MADE_UP_RATIO = 0.5
"""A burst after a gap makes up for it where it brings half of what was missing. Heuristic."""

HELD_UP_RATIO = 0.5
"""Where slowtok's own loop or its client was late for half of the time, the engine did not stand
still. Heuristic."""

LONG_GAPS = 5.0
"""A gap of so many usual ones, and of a quarter of a second, may have been a hold-up on the way."""
LONG_GAP_S = 0.25

WORST_KV_RATIO = 0.23
"""The slowest published attention kernel on a GPU that was not at fault reads the KV cache at 0.23
of the bandwidth (RTX 3090 Ti, ik_llama.cpp before its fix for grouped attention): what context
costs is never taken for a loss by rule 2."""

WORST_CPU_KV_RATIO = 0.09
"""On a CPU as llama.cpp comes (Ryzen 7950X, docs/envelope.md)."""

UNKNOWN_CONTEXT_TOKENS = 4096
UNKNOWN_CPU_CONTEXT_TOKENS = 1024
"""Where the model's bytes are not known, a context up to here is taken to cost nothing. A CPU's
attention costs more. Heuristic."""

COUNTED_AT_ALL_RATIO = 0.01
"""A counter that grew for a hundredth of the time: such a request is no measure of health."""

FAIRLY_HEALTHY_RATIO = 0.9
"""At this share of its own healthy median a setup lost nothing, whatever a counter says."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoss:
    """Seconds of decode that were lost for certain, and how that is known.

    `reference_tps` is the rate that decode would have had without it.
    """

    kind: Kind
    lost_s: float
    reference_tps: float


@cached_for_last_case
def measured_loss(case: Case) -> MeasuredLoss | None:
    """Return the largest loss of the decode that is proven without an expectation."""
    decode_s, reads = case.phases.decode_s, len(case.timeline.token_at_s)
    if not decode_s:
        return None
    rate_tps = case.phases.decode_tps or (reads - 1) / decode_s  # of a stream that broke off
    if rate_tps <= 0:
        return None
    stood_s = _stood_still_s(case, decode_s)
    lost: dict[Kind, float] = {
        "stood still": stood_s,
        "slower than itself": _below_itself_s(case, rate_tps, decode_s),
        "counted": _counted_ratio(case, rate_tps) * decode_s,
    }
    if lost["slower than itself"]:
        lost["slower than itself"] += stood_s
    kind = max(lost, key=lambda k: lost[k])
    if lost[kind] <= 0:
        return None
    reference_tps = rate_tps * decode_s / max(decode_s - lost[kind], 0.01 * decode_s)
    return MeasuredLoss(kind=kind, lost_s=lost[kind], reference_tps=reference_tps)


@cached_for_last_case
def engine_stalls(case: Case) -> tuple[Stall, ...]:
    """Return the stalls in which the engine itself gave nothing.

    Left out are those that a burst made up for, and all where reads carry several tokens or where
    the way, slowtok or its client held the tokens up.
    """
    stalls = stalls_of(case)
    if not stalls or case.server.local is False or _tokens_per_read(case) > MAX_TOKENS_PER_READ:
        return ()
    times, phases, timeline = case.timeline.token_at_s, case.phases, case.timeline
    usual_s = usual_gap_s(gaps_of(case))
    if case.timeline.tokens.completion is None:
        # a last read may hold all that a parser collected: what came after tells that it did not
        least = int(MIN_STALL_GAPS)
        stalls = tuple(s for s in stalls if s.end_s < times[-least])
    found = tuple(s for s in stalls if not _is_made_up(times, s, usual_s, _hidden_tokens(case)))
    way_s = 0.0
    if phases.source in ("engine", "metrics"):
        way_s = max((phases.decode_stream_s or 0.0) - (phases.decode_s or 0.0), 0.0)
    late_s = max(timeline.loop_lag_s or 0.0, timeline.client_blocked_s, way_s)
    return () if late_s >= HELD_UP_RATIO * sum(stall.gap_s for stall in found) else found


@cached_for_last_case
def was_throttled(case: Case) -> bool:
    """Return True if a counter of heat or brake grew while the request was prefilled or decoded."""
    samples = (*case.gpu_during("prefill"), *case.gpu_during("decode"))
    return any(
        (throttled_ratio(found) or 0.0) >= COUNTED_AT_ALL_RATIO
        for found in by_gpu(samples).values()
    )


def throttled_ratio(samples: Sequence[GpuSample]) -> float | None:
    """Return the share of the time that one GPU's driver counted as throttled for heat or braked.

    Not the software power cap, which healthy cards reach most of the time.
    """
    read = (
        gained_ratio(samples, lambda s: s.throttled_sw_thermal_ns),
        gained_ratio(samples, lambda s: s.throttled_hw_thermal_ns),
        gained_ratio(samples, lambda s: s.throttled_power_brake_ns),
    )
    return max((ratio for ratio in read if ratio is not None), default=None)


def _stood_still_s(case: Case, decode_s: float) -> float:
    stalls = engine_stalls(case)
    if not stalls:
        return 0.0
    times = case.timeline.token_at_s
    usual_s = usual_gap_s(gaps_of(case))
    way_s = max(times[-1] - times[0] - decode_s, 0.0)  # by the engine's clock it was not the engine
    stood_s = sum(stall.gap_s - usual_s for stall in stalls) - way_s
    return stood_s if stood_s >= MIN_STALLED_RATIO * decode_s else 0.0


def _is_made_up(times: Sequence[float], stall: Stall, usual_s: float, hidden_tokens: float) -> bool:
    """Return True if what was missing in a gap came right after it, or within one read."""
    missing = stall.gap_s / usual_s if usual_s > 0 else 0.0
    window_s = stall.gap_s / 2
    came = sum(1 for at_s in times if stall.end_s <= at_s <= stall.end_s + window_s)
    usual = window_s / usual_s if usual_s > 0 else 0.0
    return max(came - usual, hidden_tokens) >= MADE_UP_RATIO * missing


def _hidden_tokens(case: Case) -> float:
    """Return how many tokens more there were than reads that carried any."""
    return max((case.timeline.tokens.completion or 0) - len(case.timeline.token_at_s), 0)


def _tokens_per_read(case: Case) -> float:
    reads = len(case.timeline.token_at_s)
    return (case.timeline.tokens.completion or reads) / reads if reads else 0.0


def _below_itself_s(case: Case, rate_tps: float, decode_s: float) -> float:
    """Return how much sooner decode had ended at the best rate it held, stalls left out."""
    if case.server.local is False or speculates(case) or _had_company(case):
        return 0.0
    of_one = answers(case) == 1 and _tokens_per_read(case) <= MAX_TOKENS_PER_READ
    if not of_one or is_fairly_healthy(case.baseline, rate_tps):
        return 0.0
    best, times = best_stretch(case), case.timeline.token_at_s
    if best is None or _came_in_bursts(case):
        return 0.0
    cheaper = _cheaper_ratio(case, (best.first + best.last) / 2, len(times) / 2)
    going_s = decode_s - sum(stall.gap_s for stall in stalls_of(case))
    if cheaper is None or going_s <= 0:
        return 0.0
    # A read held one token at least. How many it held in the best stretch is not known: others may
    # be those of a thought that was hidden, or of a tool call that came as a whole.
    best_tps = best.per_s * cheaper
    going_tps = rate_tps * decode_s / going_s
    if going_tps > MAX_OF_BEST_RATIO * best_tps:
        return 0.0
    lost_s = going_s * (1 - going_tps / best_tps)
    late_s = max(case.timeline.loop_lag_s or 0.0, case.timeline.client_blocked_s)
    return 0.0 if late_s >= HELD_UP_RATIO * lost_s else lost_s


def answers(case: Case) -> int:
    """Return how many answers (`n`) the count of tokens covers: a rate is that of one of them."""
    rate, decode_s = case.phases.decode_tps, case.phases.decode_s
    completion = case.timeline.tokens.completion
    if rate is None or decode_s is None or completion is None:
        return 1
    found = completion / (rate * decode_s + 1)
    return round(found) if found > 1 and math.isclose(found, round(found), rel_tol=1e-6) else 1


def _had_company(case: Case) -> bool:
    activity, neighbours = case.activity, case.neighbours
    seen = neighbours.decode_max > 0 or neighbours.in_flight_at_send > 0
    counted = activity is not None and (activity.running_max or 0) > 1
    return seen or counted or (activity is not None and activity.alone is False)


def _came_in_bursts(case: Case) -> bool:
    """Return True if reads came together, or long gaps were made up for.

    Then the best rate is that of the way, or of a step that brought much.
    """
    times = case.timeline.token_at_s
    gaps = gaps_of(case)
    of_one_step = sum(1 for gap_s in gaps if gap_s < ONE_STEP_S)
    if of_one_step > MAX_OF_ONE_STEP_RATIO * len(gaps):
        return True
    usual_s = usual_gap_s(gaps)
    least_s = max(LONG_GAPS * usual_s, LONG_GAP_S)
    long = (
        Stall(end_s=end, gap_s=g) for g, end in zip(gaps, times[1:], strict=True) if g >= least_s
    )
    return usual_s <= 0 or any(_is_made_up(times, one, usual_s, 0.0) for one in long)


def _cheaper_ratio(case: Case, at: float, middle: float) -> float | None:
    """Return how much cheaper a token was at read `at` than at read `middle`, for its context.

    At most 1; None where what context costs is not known and may be much.
    """
    prompt, completion = case.timeline.tokens.prompt, case.timeline.tokens.completion or 0
    if at >= middle:
        return 1.0
    is_on_gpu = decodes_on_gpu(case)
    weights, per_token = _bytes_of(case)
    if prompt is None or not weights or per_token is None:
        most = UNKNOWN_CONTEXT_TOKENS if is_on_gpu else UNKNOWN_CPU_CONTEXT_TOKENS
        return 1.0 if (prompt or 0) + completion <= most else None
    per_token /= WORST_KV_RATIO / constants().kv_ratio if is_on_gpu else WORST_CPU_KV_RATIO
    per_read = _tokens_per_read(case)
    return (weights + per_token * (prompt + at * per_read)) / (
        weights + per_token * (prompt + middle * per_read)
    )


def _bytes_of(case: Case) -> tuple[float | None, float | None]:
    """Return what is read for one token of the weights, and for each token of the context."""
    envelope, model = case.envelope, case.model
    if envelope.read_bytes and envelope.kv_bytes is not None and envelope.context_tokens:
        return envelope.read_bytes, envelope.kv_bytes / envelope.context_tokens
    return model.read_bytes, model.kv_bytes_per_token  # as F16: more than a quantised cache


def _counted_ratio(case: Case, rate_tps: float) -> float:
    """Return the share of the decode that a counted throttle took."""
    if not decodes_on_gpu(case) or is_fairly_healthy(case.baseline, rate_tps):
        return 0.0
    reference_tps = _reference_tps(case)
    if reference_tps is not None and rate_tps >= MAX_OF_EXPECTED_RATIO * reference_tps:
        return 0.0
    worst = 0.0
    for index, samples in by_gpu(case.gpu_during("decode")).items():
        counted = throttled_ratio(samples)
        if counted is None or counted < MIN_COUNTED_RATIO:
            continue
        good = healthy(case, gpu_facts(case, index), samples)
        hot = [s for s in samples if s.reasons is None or s.reasons & ~HARMLESS_BITS]
        lost = lost_ratio(hot, good, "decode", lambda _: True, LEAST_SM_SHARE) or 0.0
        if 1 / (1 - lost) >= MIN_CLOCK_SLOWDOWN:
            worst = max(worst, lost * counted)
    if worst and reference_tps is not None:
        return max(worst, 1 - rate_tps / reference_tps)
    return worst


def is_fairly_healthy(baseline: Baseline, rate_tps: float) -> bool:
    """Return True if a rate is nearly what this setup gave when it was healthy."""
    usual = baseline.decode_tps
    return usual is not None and rate_tps >= FAIRLY_HEALTHY_RATIO * usual


def _reference_tps(case: Case) -> float | None:
    """Return the middle of what is expected: the setup's own healthy median first."""
    return case.baseline.decode_tps or case.envelope.expected_tps
