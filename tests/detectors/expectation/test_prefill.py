from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.hardware import GPT_OSS_120B, LLAMA_3_8B, LLAMA_CPP, RTX_4090, RTX_5090, TWO_CORES, card
from slowtok.detectors.case.case import Envelope
from slowtok.detectors.case.engine import ModelFacts
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.detectors.expectation.envelope import expect

Q4 = replace(LLAMA_3_8B, bits_per_weight=4.9)
LLAMA_2_7B = ModelFacts(
    read_bytes=3_750_000_000, layers=32, kv_bytes_per_token=524288.0, bits_per_weight=4.54
)


def prefill(facts: ModelFacts, device: DeviceFacts, context: int = 512, **more: int) -> Envelope:
    return expect(facts, device, LLAMA_CPP, context, processed_tokens=more.get("processed", 512))


@pytest.mark.parametrize(
    ("facts", "device", "processed"),
    [
        (Q4, RTX_4090, 64),  # a prompt so short is one pass over the weights
        (LLAMA_3_8B, RTX_4090, 512),  # bits not known, so neither are parameters
        (Q4, TWO_CORES, 512),
        (Q4, card("NVIDIA GeForce RTX 6090", 3000), 512),
        (Q4, card("NVIDIA GeForce RTX 5090 D", 1792), 512),  # no peak in the table
    ],
)
def test_what_is_not_known_is_not_guessed(
    facts: ModelFacts, device: DeviceFacts, processed: int
) -> None:
    envelope = prefill(facts, device, processed=processed)
    assert envelope.prefill is None
    assert envelope.expected_prefill_tps is None


# llama.cpp's scoreboard, Llama-2-7B Q4_0, pp512.
@pytest.mark.parametrize(
    ("name", "gb_s", "measured_tps"),
    [
        ("NVIDIA GeForce RTX 5090", 1792, 14073.41),
        ("NVIDIA GeForce RTX 3090", 936, 5174.69),
        ("NVIDIA GeForce RTX 3060", 360, 2137.50),
        ("Quadro RTX 8000", 672, 2709.95),
    ],
)
def test_published_rates_are_inside(name: str, gb_s: float, measured_tps: float) -> None:
    envelope = prefill(LLAMA_2_7B, card(name, gb_s))
    assert envelope.prefill is not None
    assert envelope.prefill.low < measured_tps < envelope.prefill.high
    assert envelope.expected_prefill_tps == pytest.approx(measured_tps, rel=0.3)


def test_a_mixture_reaches_less_of_its_arithmetic() -> None:
    """With 5.7 billion active parameters a dense model would prefill like a 7B."""
    moe = replace(GPT_OSS_120B, bits_per_weight=5.1)
    found = prefill(moe, RTX_5090).expected_prefill_tps
    dense = prefill(replace(moe, experts=None), RTX_5090).expected_prefill_tps
    assert found is not None
    assert dense is not None
    assert found < 0.5 * dense


@given(context=st.integers(128, 100_000), more=st.integers(0, 100_000))
def test_prefill_slows_with_depth_and_stays_in_its_band(context: int, more: int) -> None:
    near, far = (prefill(Q4, RTX_4090, context=c, processed=128) for c in (context, context + more))
    assert near.prefill is not None
    assert near.expected_prefill_tps is not None
    assert far.expected_prefill_tps is not None
    assert far.expected_prefill_tps <= near.expected_prefill_tps
    assert near.prefill.low < near.expected_prefill_tps < near.prefill.high


def test_the_prompt_that_is_read_counts_from_its_middle() -> None:
    """Measured for Qwen2.5-7B on GB10: 0.92, 0.84, 0.72, 0.56 at 4, 8, 16 and 32 K of depth."""
    facts = ModelFacts(
        read_bytes=4_400_000_000, layers=28, kv_bytes_per_token=57344.0, bits_per_weight=4.97
    )
    device = card("NVIDIA GB10", None)
    flat = prefill(facts, device, context=128, processed=128).expected_prefill_tps
    assert flat is not None
    for depth, measured_ratio in ((4096, 0.92), (8192, 0.84), (16384, 0.72), (32768, 0.56)):
        deep = prefill(facts, device, context=depth, processed=128).expected_prefill_tps
        assert deep is not None
        assert deep / flat == pytest.approx(measured_ratio, abs=0.12)
