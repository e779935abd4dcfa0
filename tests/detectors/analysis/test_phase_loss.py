"""The verdict's arithmetic: the gate of a decode, the losses of the other phases."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cases import (
    case,
    healthy,
    with_envelope,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from slowtok.detectors.analysis.phase_loss import (
    judge_decode,
    losses,
    slowdown,
    unexplained_wait,
)
from slowtok.detectors.case.case import (
    Baseline,
    Case,
    Envelope,
    Phase,
    Phases,
    Range,
)
from slowtok.detectors.case.finding import Finding, PhaseLoss
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.diagnosis.diagnose import diagnose

LOW_TPS = 76.0  # the low edge of the healthy case's band

TOO_FAST = (
    "faster than the memory allows: either the engine decodes speculatively, or slowtok has a "
    "wrong fact about the model or the GPU"
)


def decoded(
    tps: float, *, tokens: int = 450, decode_s: float = 5.0, baseline: Baseline | None = None
) -> Case:
    """A case that decoded at this rate for this long."""
    before = with_tokens(with_phases(case(), decode_tps=tps, decode_s=decode_s), completion=tokens)
    return replace(before, baseline=baseline or Baseline())


def learned(tps: float, *, p10: float | None = None, count: int = 5) -> Baseline:
    return Baseline(count=count, decode_tps=tps, decode_p10_tps=p10 or tps)


def no_band(before: Case) -> Case:
    return replace(before, envelope=Envelope(because=("no geometry",)))


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param(decoded(LOW_TPS), id="on the low edge"),
        pytest.param(decoded(150.0, tokens=3, decode_s=0.02), id="short, but clearly inside"),
        pytest.param(decoded(500.0), id="at the ceiling"),
        pytest.param(decoded(77.0, baseline=learned(200.0, count=0)), id="nothing was learned"),
        pytest.param(
            decoded(77.0, baseline=learned(109.0, count=1)), id="0.70 of one healthy request"
        ),
        pytest.param(
            decoded(77.0, baseline=learned(102.0, count=3)), id="0.75 of three healthy requests"
        ),
        pytest.param(decoded(86.0, baseline=learned(100.0)), id="0.86 of its own past"),
        pytest.param(
            decoded(77.0, baseline=learned(100.0, p10=80.0)), id="within the noise of its own past"
        ),
    ],
)
def test_is_not_slow(quiet: Case) -> None:
    judged = judge_decode(quiet)

    assert judged.slow is False
    assert judged.lost_s == 0.0
    assert judged.reason == ""


def on_gpu(case: Case) -> Case:
    return replace(case, device=replace(case.device, gpus=(GpuFacts(index=0),)))


def test_a_small_model_on_a_cpu_may_pass_the_ceiling_of_the_memory() -> None:
    assert judge_decode(decoded(500.1)).slow is False


@pytest.mark.parametrize(
    ("unclear", "reason"),
    [
        (decoded(75.9, tokens=31), "too short to judge: 31 tokens in 5.0 s of decode"),
        (decoded(75.9, decode_s=1.99), "too short to judge: 450 tokens in 2.0 s of decode"),
        (
            on_gpu(decoded(500.1)),
            TOO_FAST,
        ),
        (no_band(decoded(5.0)), "no geometry"),
        (
            no_band(decoded(9.0, baseline=learned(10.0))),
            "as fast as before (10 tokens/s), but no geometry",
        ),
        (no_band(decoded(5.0, baseline=learned(10.0, count=0))), "no geometry"),
        (
            with_envelope(decoded(5.0), decode=None, because=()),
            "there is no expectation for this model on this hardware",
        ),
    ],
)
def test_cannot_be_judged(unclear: Case, reason: str) -> None:
    judged = judge_decode(unclear)

    assert judged.slow is None
    assert judged.lost_s == 0.0
    assert judged.reason == reason


@pytest.mark.parametrize(
    ("slow", "lost_s"),
    [
        # 151 tokens/s are the middle of the band: what was expected
        pytest.param(decoded(75.9), 5.0 * (1 - 75.9 / 151), id="below the band"),
        pytest.param(
            decoded(75.9, tokens=32, decode_s=2.0), 2.0 * (1 - 75.9 / 151), id="just long enough"
        ),
        pytest.param(
            decoded(84.9, baseline=learned(100.0)), 5.0 * (1 - 0.849), id="below its own past"
        ),
        pytest.param(
            decoded(69.0, baseline=learned(100.0, p10=20.0)), 5.0 * 0.31, id="noise has its limit"
        ),
        pytest.param(
            no_band(decoded(8.4, baseline=learned(10.0))), 5.0 * 0.16, id="no band, below its past"
        ),
        pytest.param(
            decoded(76.5, baseline=learned(110.0, count=1)),
            5.0 * (1 - 76.5 / 110),
            id="below 0.70 of one healthy request",
        ),
        pytest.param(
            decoded(77.0, baseline=learned(104.0, count=3)),
            5.0 * (1 - 77 / 104),
            id="below 0.75 of three healthy requests",
        ),
        pytest.param(
            decoded(4.6, tokens=16, decode_s=3.3), 3.3 * (1 - 4.6 / 151), id="short, far outside"
        ),
        pytest.param(
            decoded(0.5, tokens=8, decode_s=16.8), 16.8 * (1 - 0.5 / 151), id="very short, absurd"
        ),
        pytest.param(
            decoded(70.0, baseline=learned(50.0)),
            5.0 * (1 - 70 / 151),
            id="always below the band: its own past does not make that right",
        ),
        pytest.param(
            with_envelope(decoded(38.0), expected_tps=None), 2.5, id="no middle: the low edge"
        ),
    ],
)
def test_is_slow(slow: Case, lost_s: float) -> None:
    judged = judge_decode(slow)

    assert judged.slow is True
    assert judged.lost_s == pytest.approx(lost_s)
    assert judged.reason == ""


def without_rate(*, ended: str = "stop", status: int = 200, completion: int | None = None) -> Case:
    quiet = with_tokens(with_phases(case(), decode_tps=None), completion=completion)
    return with_timeline(quiet, ended=ended, status=status)


@pytest.mark.parametrize(
    ("unclear", "reason"),
    [
        (without_rate(ended="http-error", status=500), "the engine answered with status 500"),
        (
            without_rate(ended="upstream-refused", status=502),
            "the engine could not be reached",
        ),
        (without_rate(ended="timeout", status=504), "the engine did not answer in time"),
        (
            without_rate(ended="upstream-error", status=200),
            "the engine broke off, or reported an error",
        ),
        (without_rate(ended="client-gone"), "the client left before the end"),
        (without_rate(), "no token count: the engine reported none, and the request ended as stop"),
        (without_rate(completion=1), "too short to judge: 1 token"),
        (
            without_rate(completion=0),
            "nothing was generated, and there is no expectation for the prefill",
        ),
        (without_rate(completion=9), "no decode time: all 9 tokens came at once"),
        (
            with_phases(without_rate(completion=9), source="estimate"),
            "the engine gave no timings and the reply was not streamed",
        ),
    ],
)
def test_says_why_there_is_no_rate(unclear: Case, reason: str) -> None:
    assert judge_decode(unclear).reason == reason


def test_an_error_is_unknown_even_where_numbers_say_slow() -> None:
    failed = with_timeline(decoded(5.0), status=500, ended="http-error")

    assert judge_decode(failed).slow is None
    assert diagnose(with_phases(failed, queue_s=9.0)).verdict == "unknown"


def found(phase: Phase, lost_s: float) -> dict[str, Finding]:
    finding = Finding(
        phase=phase, confidence=1.0, lost_s=lost_s, summary="", remedy="", evidence=()
    )
    return {"cause": finding}


def lost(case_: Case, findings: dict[str, Finding] | None = None) -> tuple[PhaseLoss, ...]:
    return losses(case_, judge_decode(case_), findings or {})


FROM_HALF_A_SECOND = [(0.49, 1.0, False), (0.5, 5.0, True)]
FROM_A_SECOND = [(0.99, 1.0, False), (1.0, 5.0, True)]
FROM_A_TENTH = [(1.0, 10.1, False), (6.0, 61.0, False), (6.0, 60.0, True)]


@pytest.mark.parametrize(
    ("phase", "wait_s", "total_s", "slow"),
    [
        *(("queue", *row) for row in FROM_HALF_A_SECOND + FROM_A_TENTH),
        *(("delivery", *row) for row in FROM_HALF_A_SECOND + FROM_A_TENTH),
        *(("load", *row) for row in FROM_A_SECOND + FROM_A_TENTH),
    ],
)
def test_a_wait_is_slow_when_it_is_felt_and_at_least_a_tenth(
    phase: Phase, wait_s: float, total_s: float, slow: bool
) -> None:
    waited = with_phases(healthy(), total_s=total_s, **{f"{phase}_s": wait_s})

    assert lost(waited) == (PhaseLoss(phase=phase, lost_s=wait_s, slow=slow, least_lost_s=wait_s),)


def test_without_an_expectation_prefill_is_slow_only_by_what_a_finding_shows() -> None:
    slow = case(prefill_s=30.0)

    assert lost(slow) == ()
    assert lost(slow, found("prefill", 20.0)) == (
        PhaseLoss(phase="prefill", lost_s=20.0, slow=True, least_lost_s=20.0),
    )


def drafting(tps: float, *, drafted: int | None = None, accepted: int | None = None) -> Case:
    before = with_server(decoded(tps, baseline=learned(200.0)), speculative=True)
    return with_tokens(before, drafted=drafted, accepted=accepted)


def test_drafts_are_not_held_against_what_other_text_gave() -> None:
    """103 and 19 tokens/s came from one healthy server (rkz91/coco#116)."""
    assert judge_decode(drafting(80.0, drafted=400, accepted=200)).slow is False
    assert judge_decode(drafting(80.0)).slow is False
    assert judge_decode(with_server(drafting(80.0), speculative=False)).slow is True


def test_slower_than_without_drafts_is_slow_if_it_is_known_what_became_of_them() -> None:
    judged = judge_decode(drafting(60.0, drafted=400, accepted=20))

    assert judged.slow is True
    assert judged.lost_s == pytest.approx(5.0 * (1 - 60 / 151))
    assert (
        "does not tell how many of its drafts were accepted" in judge_decode(drafting(60.0)).reason
    )


def test_a_finding_cannot_show_more_than_the_prefill_took() -> None:
    assert lost(case(prefill_s=2.0), found("prefill", 20.0))[0].lost_s == 2.0


def test_time_lost_on_the_way_to_the_client_is_lost_in_delivery() -> None:
    [loss] = lost(healthy(), found("delivery", 2.0))

    assert (loss.phase, loss.lost_s, loss.slow) == ("delivery", 2.0, True)


@pytest.mark.parametrize(
    ("phase", "lost_s", "times"),
    [("decode", 2.5, 2.0), ("decode", 0.0, 1.0), ("decode", 5.0, 100.0), ("prefill", 3.0, 4.0)],
)
def test_slowdown(phase: Phase, lost_s: float, times: float) -> None:
    took = with_phases(healthy(), decode_s=5.0, prefill_s=4.0)

    assert slowdown(took, lost_s, phase) == pytest.approx(times)


def test_slowdown_of_a_phase_that_is_not_known_is_none() -> None:
    assert slowdown(with_phases(healthy(), prefill_s=None), 1.0, "prefill") == 1.0


RATES = st.floats(0.01, 1e5)


@given(
    tps=st.none() | RATES,
    decode_s=st.none() | st.floats(0, 1e5),
    tokens=st.none() | st.integers(0, 10**6),
    low=st.none() | RATES,
    expected=st.none() | RATES,
    baseline=st.builds(
        Baseline,
        count=st.integers(0, 9),
        decode_tps=st.none() | RATES,
        decode_p10_tps=st.none() | RATES,
    ),
    status=st.sampled_from([None, 200, 500]),
    waits=st.fixed_dictionaries(
        {name: st.none() | st.floats(0, 1e5) for name in ("queue_s", "load_s", "delivery_s")}
    ),
)
def test_no_loss_is_negative_and_a_decode_loses_less_than_it_took(
    tps: float | None,
    decode_s: float | None,
    tokens: int | None,
    low: float | None,
    expected: float | None,
    baseline: Baseline,
    status: int | None,
    waits: dict[str, Any],
) -> None:
    phases = Phases(source="engine", total_s=1e6, decode_tps=tps, decode_s=decode_s, **waits)
    band = None if low is None else Range(low=low, high=2 * low)
    strange = replace(
        with_timeline(with_tokens(healthy(), completion=tokens), status=status),
        phases=phases,
        envelope=Envelope(decode=band, expected_tps=expected),
        baseline=baseline,
    )

    judged = judge_decode(strange)

    assert 0 <= judged.lost_s <= (decode_s or 0.0)
    assert (judged.slow is None) == bool(judged.reason)
    assert all(loss.lost_s > 0 for loss in lost(strange))


def waited_for_first_token(prefill_s: float | None, queue_s: float | None = None) -> Case:
    return with_phases(healthy(), prefill_s=prefill_s, queue_s=queue_s, ttft_s=60.0, total_s=62.0)


def test_a_long_wait_that_nobody_can_tell_apart_is_no_verdict() -> None:
    assert "may be queue, load or prefill" in (unexplained_wait(waited_for_first_token(None)) or "")


def waited_as_streamed(*, low_tps: float) -> Case:
    """A minute to the first token of 4,000 by the stream alone, and the least rate expected."""
    waited = with_tokens(waited_for_first_token(60.0), prompt=4000, cached=0)
    band = with_envelope(waited, prefill=Range(low=low_tps, high=4 * low_tps))
    return with_phases(band, source="stream")


def test_a_wait_far_longer_than_the_prompt_needs_is_no_verdict_if_only_the_stream_tells() -> None:
    assert "may be queue, load or prefill" in (
        unexplained_wait(waited_as_streamed(low_tps=100.0)) or ""
    )


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(waited_as_streamed(low_tps=60.0), id="as long as such a prompt may take"),
        pytest.param(waited_for_first_token(59.0), id="prefill is known"),
        pytest.param(waited_for_first_token(None, queue_s=59.0), id="queue is known"),
        pytest.param(with_phases(healthy(), prefill_s=None, queue_s=None), id="it was short"),
    ],
)
def test_a_wait_that_can_be_judged(told: Case) -> None:
    assert unexplained_wait(told) is None


def test_what_was_measured_of_the_ram_is_no_ceiling() -> None:
    fast = with_envelope(decoded(500.1), read_bytes=5e9)

    assert judge_decode(fast).slow is False


def test_a_baseline_outside_the_band_does_not_count() -> None:
    """Where the band is wrong (a GPU that is not visible), so is what was learned beside it."""
    assert judge_decode(decoded(400.0, baseline=learned(1000.0))).slow is False
