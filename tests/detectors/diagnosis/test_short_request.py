"""A short request's verdict is the one that `diagnose` gives, whatever else is in its case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cases import (
    FIRING,
    case,
    healthy,
    with_envelope,
    with_phases,
    with_timeline,
    with_tokens,
)
from slowtok.detectors.analysis.phase_loss import MIN_WAIT_S
from slowtok.detectors.case.case import Case, Range
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.detectors.diagnosis.short_request import judge_short


def shortened(before: Case, total_s: float) -> Case:
    """The case of a request that was over after `total_s`, whatever its engine claims."""
    begin_s = before.timeline.accepted_at_s
    return with_timeline(
        with_phases(before, total_s=total_s),
        last_byte_at_s=begin_s + total_s,
        delivered_at_s=begin_s + total_s,
        ended_at_s=begin_s + total_s,
    )


@pytest.mark.parametrize("cause", sorted(FIRING))
@pytest.mark.parametrize("total_s", [0.001, 0.2, 0.499])
def test_no_cause_makes_a_short_request_slow(cause: str, total_s: float) -> None:
    short = shortened(with_phases(FIRING[cause](), source="engine"), total_s)
    judged, diagnosed = judge_short(short), diagnose(short)

    assert judged is not None
    assert judged.verdict == diagnosed.verdict != "slow"
    assert all(finding.informational for finding in diagnosed.findings.values())


@given(
    total_s=st.floats(0.0, MIN_WAIT_S, exclude_max=True),
    claimed_s=st.one_of(st.none(), st.floats(0.0, 100.0)),
    tokens=st.one_of(st.none(), st.integers(0, 5000)),
    low=st.one_of(st.none(), st.floats(1.0, 500.0)),
    ceiling=st.one_of(st.none(), st.floats(1.0, 1000.0)),
    status=st.sampled_from((200, 400, 503)),
)
def test_its_verdict_is_that_of_the_whole_diagnosis(
    total_s: float,
    claimed_s: float | None,
    tokens: int | None,
    low: float | None,
    ceiling: float | None,
    status: int,
) -> None:
    rate = None if not claimed_s or not tokens or tokens < 2 else (tokens - 1) / claimed_s
    phases = {
        "source": "engine",
        "queue_s": claimed_s,
        "load_s": claimed_s,
        "prefill_s": claimed_s,
        "decode_s": claimed_s,
        "decode_tps": rate,
    }
    band = None if low is None else Range(low=low, high=2 * low)
    short = shortened(with_phases(case(), **phases), total_s)
    short = with_tokens(with_timeline(short, status=status), completion=tokens)
    short = with_envelope(short, decode=band, ceiling_tps=ceiling)

    judged = judge_short(short)

    assert judged is not None
    assert judged.verdict == diagnose(short).verdict != "slow"


def test_a_longer_request_is_not_judged_here() -> None:
    assert judge_short(shortened(healthy(), MIN_WAIT_S)) is None


def test_phases_that_samples_may_tell_better_are_not_judged_here() -> None:
    seen = replace(healthy().phases, source="stream", total_s=0.1)

    assert judge_short(replace(healthy(), phases=seen)) is None


def test_what_an_engine_claims_beyond_the_time_that_passed_is_not_lost() -> None:
    """A reply from a cache tells the timings of long ago."""
    claims = with_phases(case(ms_per_token=500.0), total_s=0.01)

    assert diagnose(with_phases(claims, total_s=300.0)).verdict == "slow"
    assert diagnose(claims).verdict == "unknown"
