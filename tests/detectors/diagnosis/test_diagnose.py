"""From findings to a verdict with causes: ranking, roots, the loss budget, broken detectors."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cases import (
    case,
    cpu_quota_of_one_core,
    healthy,
    with_envelope,
    with_phases,
    with_timeline,
)
from fakes.firing import FIRING
from slowtok.detectors.case.case import Baseline, Case, Phase, Range
from slowtok.detectors.case.finding import UNNAMED, Diagnosis, Finding, Missing, Traits
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of
from slowtok.detectors.diagnosis.diagnose import MAX_CONTRIBUTING, diagnose
from slowtok.detectors.diagnosis.precedence import roots_of

DECODE_S = 10.0


class Says:
    """A detector that says what a test wants."""

    TITLE = "A cause"
    TRAITS = Traits()

    def __init__(self, name: str, answer: Callable[[], Finding | None]) -> None:
        self.__name__ = name
        self._answer = answer

    def detect(self, case: Case) -> Finding | None:
        return self._answer()


def says(
    cause: str,
    lost_s: float,
    *,
    phase: Phase = "decode",
    confidence: float = 0.9,
    informational: bool = False,
    proof_s: float = 0.0,
) -> Says:
    finding = Finding(
        phase=phase,
        confidence=confidence,
        lost_s=lost_s,
        summary="It lost {lost}.",
        remedy="Mend it.",
        evidence=(),
        informational=informational,
        proof_s=proof_s,
    )
    return Says(f"slowtok.detectors.x.{cause.replace('-', '_')}", lambda: finding)


def slow_decode(lost_s: float) -> Case:
    """Ten seconds of decode, of which this much was lost against 151 tokens/s."""
    return with_phases(case(), decode_s=DECODE_S, decode_tps=151 * (1 - lost_s / DECODE_S))


def judged(before: Case, *detectors: Says) -> Diagnosis:
    return diagnose(before, catalog=detectors)


def test_healthy_is_normal_whatever_detectors_see() -> None:
    diagnosis = judged(healthy(), says("loud", 2.0), says("blip", 0.05, phase="prefill"))

    assert (diagnosis.verdict, diagnosis.phase, diagnosis.reason) == ("normal", None, "")
    assert diagnosis.findings == {}
    assert diagnosis.budget_ms_per_token == {}


def test_informational_finding_explains_and_never_makes_slow() -> None:
    diagnosis = judged(healthy(), says("long-context", 9.0, informational=True))

    assert diagnosis.verdict == "normal"
    assert list(diagnosis.findings) == ["long-context"]
    assert diagnosis.budget_ms_per_token == {}


def test_slow_without_a_finding_is_unexplained() -> None:
    diagnosis = judged(
        slow_decode(6.0), Says("a.quiet", lambda: None), says("talk", 1.0, informational=True)
    )

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", "decode")
    assert list(diagnosis.findings) == ["talk"]
    assert diagnosis.cleared == ("quiet",)
    assert diagnosis.budget_ms_per_token == {"unexplained": pytest.approx(6000 / 450)}


def test_a_guess_is_not_named() -> None:
    diagnosis = judged(slow_decode(6.0), says("guess", 6.0, confidence=0.49))

    assert diagnosis.findings == {}
    assert list(diagnosis.budget_ms_per_token) == ["unexplained"]


@pytest.mark.parametrize("predicted_s", [8.5, 0.5], ids=["far too much", "far too little"])
def test_cause_whose_slowdown_is_far_from_the_observed_is_not_named(predicted_s: float) -> None:
    observed_s = 5.0  # 2 times slower; predicted 6.7 and 1.05 times

    assert judged(slow_decode(observed_s), says("other", predicted_s)).findings == {}


def test_a_cause_that_brings_the_rate_back_into_the_band_explains_enough() -> None:
    """35 of 49 tokens/s expected are in the band: what lowers 35 to 25 is the cause."""
    lowered = with_envelope(
        with_phases(case(), decode_s=DECODE_S, decode_tps=25.0),
        decode=Range(low=34.0, high=60.0),
        expected_tps=49.0,
    )
    diagnosis = judged(lowered, says("power-cap", DECODE_S * (1 - 25 / 35)))

    assert list(diagnosis.findings) == ["power-cap"]
    assert diagnosis.reason == ""


HEALTHY_HERE = Baseline(
    count=3, decode_tps=150.0, decode_p10_tps=149.0, usual_decode_tps=150.0, healthy_here=3
)


@pytest.mark.parametrize("cause", ["slow-kernel", "partial-offload", "threads-misconfigured"])
def test_what_stands_cannot_begin_in_an_engine_that_was_healthy(cause: str) -> None:
    fell = replace(slow_decode(6.0), baseline=HEALTHY_HERE)
    diagnosis = judged(fell, says(cause, 6.0))

    assert diagnosis.verdict == "slow"
    assert diagnosis.findings == {}
    assert diagnosis.cleared == (cause,)
    assert list(judged(slow_decode(6.0), says(cause, 6.0)).findings) == [cause]


def test_what_can_begin_is_named_in_an_engine_that_was_healthy() -> None:
    fell = replace(slow_decode(6.0), baseline=HEALTHY_HERE)

    assert list(judged(fell, says("gpu-shared", 6.0)).findings) == ["gpu-shared"]


def test_what_stands_explains_the_standing_part_and_what_begins_the_new_one() -> None:
    """A standing offload gives 50 of 151 tokens/s; beside a compile job it gives 20."""
    slow = with_phases(case(), decode_s=DECODE_S, decode_tps=20.0)
    slow = replace(slow, baseline=Baseline(usual_decode_tps=50.0))
    diagnosis = judged(slow, says("partial-offload", 9.0), says("host-contention", 6.0))

    assert list(diagnosis.findings) == ["host-contention", "partial-offload"]
    standing_s = DECODE_S * 20.0 * (1 / 50 - 1 / 151)
    assert diagnosis.findings["partial-offload"].lost_s == pytest.approx(standing_s, rel=0.05)
    assert diagnosis.findings["host-contention"].lost_s == pytest.approx(6.0)


def test_two_that_explain_most_together_are_named_where_neither_explains_half() -> None:
    """Ten times slower than expected, of which each made it twice as slow."""
    offload, threads = says("partial-offload", 5.0), says("threads-misconfigured", 5.1)

    both = judged(slow_decode(9.0), offload, threads)
    assert set(both.findings) == {"partial-offload", "threads-misconfigured"}
    assert judged(slow_decode(9.0), offload).findings == {}
    assert judged(slow_decode(9.0), threads).findings == {}


def test_a_loss_that_comes_with_another_does_not_count_twice() -> None:
    """What the link costs is a part of what the offload costs."""
    (root,) = roots_of("pcie-link")[:1]
    pair = says(root, 5.0), says("pcie-link", 5.1)

    assert judged(slow_decode(9.0), *pair).findings == {}


def test_proof_never_vanishes_and_what_is_left_comes_first_in_words() -> None:
    diagnosis = judged(slow_decode(9.0), says("storage-paging", 1.0, proof_s=1.0))

    assert list(diagnosis.findings) == ["storage-paging"]
    assert diagnosis.reason.startswith("mostly unexplained: what is named accounts for 1.0 of the")
    assert judged(slow_decode(9.0), says("storage-paging", 1.0)).findings == {}


def test_what_is_counted_makes_a_phase_slow_without_a_band() -> None:
    unknown = with_envelope(
        with_phases(case(), decode_s=DECODE_S, decode_tps=20.0),
        decode=None,
        expected_tps=None,
        ceiling_tps=None,
        because=("no table has it",),
    )
    counted = says("host-contention", 4.0, proof_s=4.0)

    assert judged(unknown).verdict == "unknown"
    assert judged(unknown, says("host-contention", 4.0)).verdict == "unknown"
    assert judged(unknown, says("host-contention", 2.0, proof_s=2.0)).verdict == "unknown"
    assert judged(unknown, counted).verdict == "slow"
    assert list(judged(unknown, counted).findings) == ["host-contention"]
    as_ever = replace(unknown, baseline=Baseline(count=3, decode_tps=21.0, decode_p10_tps=20.0))
    assert judged(as_ever, counted).verdict == "unknown"
    assert judged(as_ever, counted).reason.startswith("as fast as before (21 tokens/s)")


def test_what_is_present_without_cost_is_not_ruled_out() -> None:
    diagnosis = judged(
        healthy(), says("power-cap", 2.0), Says("a.thermal_throttle", lambda: UNNAMED)
    )

    assert diagnosis.findings == {}
    assert diagnosis.unused == ("thermal-throttle", "power-cap")
    assert diagnosis.cleared == ()


def test_a_cause_that_is_doubted_makes_nothing_slow() -> None:
    known = replace(healthy().history, judged_recently=5)
    fine = replace(with_phases(healthy(), prefill_s=9.0, total_s=20.0), history=known)
    odd = says("slow-prefill", 8.0, phase="prefill", confidence=0.55)
    diagnosis = judged(fine, odd)
    again = judged(
        replace(fine, history=replace(known, causes_recently=("slow-prefill",) * 2)), odd
    )

    assert (diagnosis.verdict, diagnosis.findings) == ("normal", {})
    assert (again.verdict, list(again.findings)) == ("slow", ["slow-prefill"])


def test_cause_of_another_phase_does_not_explain_this_one() -> None:
    diagnosis = judged(slow_decode(6.0), says("other", 6.0, phase="queue"))

    assert diagnosis.findings == {}
    assert diagnosis.phase == "decode"


def test_the_best_fit_comes_first() -> None:
    diagnosis = judged(slow_decode(6.0), says("loose", 3.0), says("tight", 5.5))

    assert list(diagnosis.findings) == ["tight", "loose"]


def test_confidence_counts_where_the_fit_is_the_same() -> None:
    diagnosis = judged(
        slow_decode(6.0), says("weak", 4.0, confidence=0.6), says("strong", 4.0, confidence=0.9)
    )

    assert next(iter(diagnosis.findings)) == "strong"


def test_root_comes_before_its_symptom() -> None:
    diagnosis = judged(slow_decode(6.0), says("threads-misconfigured", 5.9), says("cpu-quota", 4.5))

    assert list(diagnosis.findings) == ["cpu-quota", "threads-misconfigured"]
    assert diagnosis.findings["threads-misconfigured"].lost_s == pytest.approx(1.5)


def test_root_in_one_phase_comes_before_its_symptom_in_a_worse_one() -> None:
    slow = with_phases(slow_decode(5.0), prefill_s=20.0, total_s=31.0)
    diagnosis = judged(
        slow, says("slow-prefill", 15.0, phase="prefill"), says("gpu-shared", 5.0, confidence=0.7)
    )

    assert list(diagnosis.findings) == ["gpu-shared", "slow-prefill"]
    assert diagnosis.phase == "prefill"
    assert [round(f.lost_s) for f in diagnosis.findings.values()] == [5, 15]


def test_root_that_explains_little_does_not_push_the_cause_aside() -> None:
    diagnosis = judged(slow_decode(6.0), says("host-contention", 5.5), says("cpu-quota", 2.0))

    assert next(iter(diagnosis.findings)) == "host-contention"


def test_symptom_follows_its_root_though_the_root_is_charged_with_all() -> None:
    diagnosis = judged(slow_decode(6.0), says("cpu-quota", 6.0), says("threads-misconfigured", 6.0))

    assert list(diagnosis.findings) == ["cpu-quota", "threads-misconfigured"]
    assert [finding.lost_s for finding in diagnosis.findings.values()] == [6.0, 0.0]
    assert diagnosis.findings["threads-misconfigured"].summary == (
        "It lost 6.0 s (counted under its root cause)."
    )


def test_what_is_counted_may_predict_more_than_happened() -> None:
    much = judged(slow_decode(6.0), says("storage-paging", 9.9, proof_s=1.0))

    assert {cause: f.lost_s for cause, f in much.findings.items()} == {"storage-paging": 6.0}
    assert judged(slow_decode(6.0), says("storage-paging", 9.9)).findings == {}


def test_cause_that_has_nothing_left_to_explain_is_not_named() -> None:
    diagnosis = judged(slow_decode(6.0), says("cause-a", 6.0), says("cause-b", 5.9))

    assert list(diagnosis.findings) == ["cause-a"]


def test_one_primary_and_two_contributing_causes_at_most() -> None:
    diagnosis = judged(slow_decode(5.0), *(says(f"cause-{i}", 1.2 + i / 10) for i in range(5)))

    assert len(diagnosis.findings) == 1 + MAX_CONTRIBUTING


def test_loss_is_said_in_the_summary_as_charged() -> None:
    diagnosis = judged(slow_decode(6.0), says("cause", 7.0))

    assert diagnosis.findings["cause"].summary == "It lost 6.0 s."


def test_slow_in_the_queue_only() -> None:
    diagnosis = diagnose(FIRING["queued"]())

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", "queue")
    assert list(diagnosis.findings) == ["queued"]
    assert diagnosis.budget_ms_per_token == {
        "queued": pytest.approx(2500 / 450),
        "unexplained": 0.0,
    }


def test_slow_queue_before_a_decode_that_is_too_short_to_judge() -> None:
    waited = with_phases(case(queue_s=3.0), decode_s=1.0, decode_tps=10.0, total_s=4.1)
    diagnosis = judged(waited, says("queued", 3.0, phase="queue"))

    assert (diagnosis.verdict, diagnosis.phase, diagnosis.reason) == ("slow", "queue", "")


def test_phase_of_the_verdict_lost_most() -> None:
    both = with_phases(slow_decode(6.0), queue_s=4.0, total_s=15.0)
    diagnosis = judged(both, says("queued", 4.0, phase="queue"), says("cause", 6.0))

    assert diagnosis.phase == "decode"
    assert list(diagnosis.findings) == ["cause", "queued"]
    assert {loss.phase: loss.lost_s for loss in diagnosis.losses} == {
        "queue": 4.0,
        "decode": pytest.approx(6.0),
    }


@pytest.mark.parametrize(
    ("status", "ended", "reason"),
    [
        (503, "http-error", "the engine answered with status 503"),
        (502, "upstream-refused", "the engine could not be reached"),
    ],
)
def test_errors_are_unknown_with_the_reason(status: int, ended: str, reason: str) -> None:
    failed = with_timeline(with_phases(case(queue_s=9.0)), status=status, ended=ended)
    diagnosis = diagnose(failed)

    assert (diagnosis.verdict, diagnosis.reason) == ("unknown", reason)
    assert diagnosis.losses == ()


def test_client_that_left_is_unknown() -> None:
    gone = with_phases(with_timeline(case(), ended="client-gone"), decode_tps=None)

    assert diagnose(gone).reason == "the client left before the end"


def fail(error: Exception) -> Callable[[], Finding | None]:
    def answer() -> Finding | None:
        raise error

    return answer


def test_detector_that_raises_costs_only_itself() -> None:
    diagnosis = judged(
        slow_decode(6.0),
        Says("a.broken", fail(ZeroDivisionError("secret of the case"))),
        says("cause", 6.0),
    )

    assert diagnosis.failed == {"broken": "ZeroDivisionError"}
    assert list(diagnosis.findings) == ["cause"]


def test_detector_that_misses_a_fact_is_listed_with_it() -> None:
    diagnosis = judged(healthy(), Says("a.blind", fail(Missing("GPU utilisation"))))

    assert diagnosis.missing == {"blind": "GPU utilisation"}
    assert diagnosis.cleared == ()


def test_disabled_cause_is_not_even_looked_at() -> None:
    diagnosis = diagnose(FIRING["queued"](), disabled=["queued"])

    assert diagnosis.verdict == "slow"
    assert "queued" not in {*diagnosis.findings, *diagnosis.cleared, *diagnosis.missing}


def test_healthy_case_is_cleared_by_the_whole_catalogue() -> None:
    diagnosis = diagnose(healthy())

    assert diagnosis.verdict == "normal"
    assert diagnosis.cleared == tuple(cause_of(detector) for detector in CATALOG)


@pytest.mark.parametrize("cause", sorted(FIRING))
def test_the_provoked_cause_is_the_diagnosis(cause: str) -> None:
    provoked = FIRING[cause]()
    if cause in {"cpu-quota", "multi-gpu-split"}:  # inside the band: only its own past tells
        past = Baseline(count=9, decode_tps=provoked.envelope.expected_tps)
        provoked = replace(provoked, baseline=past)

    diagnosis = diagnose(provoked)

    first, finding = next(iter(diagnosis.findings.items()))
    assert first == cause
    assert diagnosis.verdict == ("normal" if finding.informational else "slow")


def test_quota_comes_before_the_threads_that_it_does_not_suit() -> None:
    assert next(iter(diagnose(cpu_quota_of_one_core()).findings)) == "cpu-quota"


FINDINGS = st.lists(
    st.tuples(
        st.sampled_from(["queue", "load", "prefill", "decode", "delivery"]),
        st.floats(0, 1e4),
        st.floats(0, 1),
        st.booleans(),
    ),
    max_size=8,
)
NAMES = (
    "cpu-quota",
    "threads-misconfigured",
    "host-contention",
    "batch-shared",
    "a",
    "b",
    "c",
    "d",
)


@given(
    findings=FINDINGS,
    decode_lost_s=st.floats(-5, 9.99),
    waits=st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100)),
)
def test_budget_sums_to_what_was_lost(
    findings: list[tuple[Phase, float, float, bool]],
    decode_lost_s: float,
    waits: tuple[float, float, float],
) -> None:
    queue_s, load_s, delivery_s = waits
    strange = with_phases(
        slow_decode(decode_lost_s),
        queue_s=queue_s,
        load_s=load_s,
        delivery_s=delivery_s,
        total_s=DECODE_S + sum(waits),
    )
    detectors = [
        says(name, lost_s, phase=phase, confidence=confidence, informational=informs)
        for name, (phase, lost_s, confidence, informs) in zip(NAMES, findings, strict=False)
    ]

    diagnosis = judged(strange, *detectors)

    slow = [loss for loss in diagnosis.losses if loss.slow]
    named = {c: f for c, f in diagnosis.findings.items() if not f.informational}
    parts_s = {c: ms * 450 / 1000 for c, ms in diagnosis.budget_ms_per_token.items()}
    assert (diagnosis.verdict == "slow") == bool(slow)
    assert sum(parts_s.values()) == pytest.approx(sum(loss.lost_s for loss in slow))
    assert all(part >= 0 for part in parts_s.values())
    assert set(parts_s) == ({*named, "unexplained"} if slow else set())
    assert len(named) <= 1 + MAX_CONTRIBUTING
    for loss in slow:
        charged_s = [f.lost_s for f in named.values() if f.phase == loss.phase]
        assert sum(charged_s) <= loss.lost_s * (1 + 1e-9)
    assert all(f.lost_s > 0 for c, f in named.items() if not roots_of(c))  # a symptom may be free
    assert not {*diagnosis.findings} & {*diagnosis.cleared}


def test_without_tokens_there_is_no_budget_per_token() -> None:
    waited = case(queue_s=3.0)
    tokens = replace(waited.timeline.tokens, completion=None)
    diagnosis = diagnose(with_timeline(waited, tokens=tokens))

    assert diagnosis.phase == "queue"
    assert diagnosis.budget_ms_per_token == {}
