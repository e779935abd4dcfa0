"""Models of which only name, size or type are known: a wider band that says so, instead of none."""

from dataclasses import replace

import pytest

from fakes.hardware import LLAMA_3_8B, LLAMA_CPP, RTX_4090, band
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.expectation.assumed_model import Unsized, completed, completed_live
from slowtok.detectors.expectation.envelope import expect

TOLD = ModelFacts(
    name="Meta-Llama-3-8B-Instruct-Q4_K_M", parameters=8_030_000_000, file_bytes=4_920_000_000
)
FOREIGN = ModelFacts(name="Nobody-Yet-11B", parameters=11_100_000_000, file_bytes=6_700_000_000)


def test_a_model_whose_file_was_read_is_taken_at_its_word() -> None:
    assert completed_live(LLAMA_3_8B) == (LLAMA_3_8B, ())


@pytest.mark.parametrize(
    "told", [ModelFacts(), ModelFacts(name="x"), ModelFacts(name="x", quantisation="Q4_0")]
)
def test_without_any_size_there_is_still_no_band(told: ModelFacts) -> None:
    assert completed_live(told) == (told, ())
    assert expect(told, RTX_4090, LLAMA_CPP, 100).decode is None
    with pytest.raises(Unsized):
        completed(told)


def test_a_published_model_by_name_and_size_is_nearly_as_good_as_its_file() -> None:
    exact, told = (expect(m, RTX_4090, LLAMA_CPP, 1000) for m in (LLAMA_3_8B, TOLD))
    assert told.expected_tps == pytest.approx(exact.expected_tps, rel=0.03)
    assert band(told).low < band(exact).low
    assert band(told).high > band(exact).high
    assert (told.ceiling_tps or 0) > (exact.ceiling_tps or 0)
    assert any("shape of Llama-3-8B by name and size" in note for note in told.because)


def test_an_unknown_model_gets_a_wide_band_and_no_ceiling() -> None:
    """It may be a mixture of experts, and then be several times as fast."""
    found = expect(FOREIGN, RTX_4090, LLAMA_CPP, 1000)
    assert found.ceiling_tps is None
    assert band(found).high > 5 * band(found).low
    assert any("taken like others of its size" in note for note in found.because)
    assert any("taken as dense" in note for note in found.because)


@pytest.mark.parametrize(
    "mixture",
    [
        replace(FOREIGN, name="Nobody-Yet-11B-A2B"),
        replace(FOREIGN, experts=64, experts_used=10),
    ],
)
def test_a_mixture_that_its_name_or_engine_tells_of_reads_its_active_part(
    mixture: ModelFacts,
) -> None:
    facts, assumed = completed_live(mixture)
    assert facts.read_bytes == pytest.approx(6.7e9 * 2 / 11.1, rel=0.1)
    assert all(each.high_ratio is not None for each in assumed)
    assert expect(mixture, RTX_4090, LLAMA_CPP, 1000).ceiling_tps is not None


def test_what_was_told_is_kept() -> None:
    told = replace(TOLD, layers=32, kv_bytes_per_token=1.0, experts=1)
    facts, _ = completed_live(told)
    assert (facts.kv_bytes_per_token, facts.kv_window_tokens) == (1.0, None)
    assert facts.file_bytes == TOLD.file_bytes
    assert facts.read_bytes is not None
