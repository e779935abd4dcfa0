from dataclasses import replace

import pytest

from fakes.hardware import LLAMA_CPP, QWEN3_8B, RTX_5090
from slowtok.detectors.case.case import Envelope
from slowtok.detectors.expectation.envelope import expect, judge_claim

ENVELOPE = expect(QWEN3_8B, RTX_5090, LLAMA_CPP, 64)


def test_nothing_is_said_without_a_ceiling() -> None:
    claim = judge_claim(Envelope(because=("the GPU is not known",)), 100)
    assert (claim.possibility, claim.ceiling_ratio) == ("unknown", None)
    assert claim.because == "the GPU is not known"
    assert judge_claim(Envelope(), 100).because


@pytest.mark.parametrize(
    ("tps", "possibility"),
    [
        (20.0, "slow"),
        (221.7, "plausible"),  # measured: CambrianTech/continuum PR 1627
        (340.0, "plausible"),
        (370.0, "unheard-of"),
        (400.0, "impossible"),
        (17000.0, "impossible"),
    ],
)
def test_claims_for_qwen3_8b_on_one_rtx_5090(tps: float, possibility: str) -> None:
    assert judge_claim(ENVELOPE, tps).possibility == possibility


def test_a_famous_claim_is_told_how_far_off_it_is() -> None:
    claim = judge_claim(ENVELOPE, 17000)
    assert claim.ceiling_ratio == pytest.approx(44.6, rel=0.02)
    assert claim.because.startswith("44.")


def test_a_ceiling_without_a_band_still_judges() -> None:
    bare = replace(ENVELOPE, decode=None)
    assert judge_claim(bare, 20).possibility == "plausible"
    assert judge_claim(bare, 4000).possibility == "impossible"
