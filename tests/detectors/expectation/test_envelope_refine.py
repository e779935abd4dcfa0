from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.detectors.case.case import Baseline, Envelope, Range
from slowtok.detectors.case.engine import ModelFacts, ServerFacts
from slowtok.detectors.case.machine import DeviceFacts, GpuFacts
from slowtok.detectors.expectation.envelope import REFINE_AFTER, expect, refine

LLAMA_3_8B = ModelFacts(read_bytes=4_620_000_000, layers=32, kv_bytes_per_token=131072)
RTX_3090 = DeviceFacts(
    gpus=(GpuFacts(index=0, name="NVIDIA GeForce RTX 3090", bandwidth_bytes_per_s=936e9),)
)


def band(envelope: Envelope) -> Range:
    assert envelope.decode is not None
    return envelope.decode


FIRST = expect(LLAMA_3_8B, RTX_3090, ServerFacts(kind="llama-server"), 100)


@pytest.mark.parametrize(
    "baseline",
    [
        Baseline(),
        Baseline(count=50, decode_tps=None),
        Baseline(count=REFINE_AFTER - 1, decode_tps=140.0, peers=2),
    ],
)
def test_without_a_history_nothing_is_narrowed(baseline: Baseline) -> None:
    assert refine(FIRST, baseline) == FIRST


@pytest.mark.parametrize(
    ("count", "low_ratio"), [(1, 0.70), (2, 0.70), (3, 0.75), (4, 0.75), (5, 0.85), (50, 0.85)]
)
def test_the_low_edge_rises_with_what_is_known(count: int, low_ratio: float) -> None:
    usual_tps = FIRST.decode.high if FIRST.decode else 0.0
    refined = refine(FIRST, Baseline(count=count, decode_tps=usual_tps))

    assert refined.decode is not None
    assert refined.decode.low == pytest.approx(low_ratio * usual_tps)
    assert refined.expected_tps == usual_tps


def test_no_band_is_not_made_of_a_history() -> None:
    assert refine(Envelope(), Baseline(count=9, decode_tps=5.0)) == Envelope()


@pytest.mark.parametrize("usual_tps", [30.0, 500.0])
def test_a_machine_that_was_always_slow_does_not_become_normal(usual_tps: float) -> None:
    refined = refine(FIRST, Baseline(count=50, decode_tps=usual_tps))
    assert refined.decode == FIRST.decode
    assert refined.expected_tps == FIRST.expected_tps
    assert "not used" in refined.because[-1]


def test_a_history_narrows_the_band_around_itself() -> None:
    refined = refine(FIRST, Baseline(count=9, decode_tps=120.0))
    assert band(refined).low == pytest.approx(102.0)
    assert band(refined).high == pytest.approx(150.0)
    assert refined.expected_tps == 120.0
    assert refined.ceiling_tps == FIRST.ceiling_tps
    assert any("first principles" in note for note in refined.because)


def test_rates_of_a_thousand_and_more_are_written_as_people_do() -> None:
    fast = replace(FIRST, decode=Range(low=64.03, high=1036.2), ceiling_tps=None)
    refined = refine(fast, Baseline(count=1, decode_tps=1002.4))

    assert "first principles: 64-1,036 tokens/s" in refined.because
    assert refined.because[-1].endswith(", 1,002 tokens/s")


def test_what_other_machines_gave_narrows_it_less() -> None:
    gave = Baseline(count=12, decode_tps=140.0, decode_p10_tps=139.0, peers=3)

    assert band(refine(FIRST, gave)).low == pytest.approx(98.0)
    assert band(refine(FIRST, replace(gave, peers=0))).low == pytest.approx(119.0)


@given(usual=st.floats(1, 1000))
def test_refinement_only_ever_narrows_save_for_a_machine_that_is_faster(usual: float) -> None:
    edges, first = band(refine(FIRST, Baseline(count=9, decode_tps=usual))), band(FIRST)
    ceiling = FIRST.ceiling_tps or 0.0
    most = max(first.high, usual if usual <= ceiling else 0.0)
    assert first.low <= edges.low <= edges.high <= most
