from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_envelope, with_phases, with_tokens
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.engine_cases import prefilled
from fakes.engine_cases import slow_prefill as firing
from fakes.gpu_cases import with_model, with_readings
from slowtok.detectors.case.case import Case, History, Neighbours
from slowtok.detectors.causes.server import slow_prefill
from slowtok.detectors.diagnosis.diagnose import diagnose

MIXTRAL_GB = 26.4  # Q4_K_M


def split(micro_batch: int, *, tps: float, **server: Any) -> Case:
    """Layers in RAM that the GPU fetches for each micro-batch, over PCIe 4.0 x16."""
    before = prefilled(tps, micro_batch_tokens=micro_batch, gpu_layers=11, **server)
    return with_model(before, file_bytes=int(MIXTRAL_GB * 1e9))


def not_cached(before: Case) -> Case:
    """The same with a tenth of the prompt computed: many tokens were known."""
    return with_tokens(before, cached=5_900)


QUIET = [
    pytest.param(prefilled(3_000.0), id="within the band"),
    pytest.param(prefilled(2_000.0, prompt=28_000), id="many tokens at the usual rate: cache miss"),
    pytest.param(prefilled(90.0, prompt=200), id="a short prompt is one pass over the weights"),
    pytest.param(prefilled(400.0, prompt=600), id="slow, but over in 1.5 s"),
    pytest.param(not_cached(firing()), id="next to nothing was computed"),
    pytest.param(
        replace(firing(), neighbours=Neighbours(in_flight_at_send=1)), id="beside another request"
    ),
    pytest.param(with_phases(firing(), load_s=4.0), id="right after a load"),
    pytest.param(with_phases(firing(), source="stream"), id="the wait may be more than prefill"),
]
FIRING = [
    pytest.param(firing(), 14.3, 0.93, "only 16 tokens at once (--ubatch-size)", id="micro-batch"),
    pytest.param(
        prefilled(700.0, batch_tokens=32),
        7.1,
        0.93,
        "--batch-size 512 or more",
        id="a batch smaller than the micro-batch",
    ),
    pytest.param(
        split(512, tps=420.0),
        12.6,
        0.93,
        "of the weights are in RAM and are fetched for each 512",
        id="fetched (llama.cpp#26391)",
    ),
    pytest.param(
        split(512, tps=420.0, kind="ollama"), 12.6, 0.93, "num_batch 2048", id="fetched, in Ollama"
    ),
    pytest.param(
        split(2048, tps=1000.0),
        4.09,
        0.93,
        "a smaller quantisation",
        id="fetched as seldom as can be",
    ),
]
MISSING = [
    pytest.param(with_phases(firing(), prefill_s=None), "prefill time", id="no timings"),
    pytest.param(
        with_envelope(firing(), prefill=None, expected_prefill_tps=None),
        "prefill rate expected of this GPU",
        id="no expectation",
    ),
]


test_quiet = quiet(slow_prefill, QUIET)
test_fires = fires(slow_prefill, "lost_s confidence said", FIRING, phase="prefill", rel=0.1)
test_names_the_missing_fact = lacks(slow_prefill, MISSING)


def test_without_a_reason_it_is_slow_and_unexplained() -> None:
    unclear = prefilled(1_400.0)
    diagnosis, finding = diagnose(unclear), found(slow_prefill, unclear)

    assert (diagnosis.verdict, diagnosis.phase) == ("slow", "prefill")
    assert not diagnosis.findings
    assert "slowtok sees no reason for it" in finding.summary
    assert finding.confidence < 0.5


def test_far_below_all_that_is_expected_is_slow_prefill_whatever_the_reason() -> None:
    [(cause, finding)] = diagnose(prefilled(500.0)).findings.items()

    assert (cause, finding.confidence) == ("slow-prefill", 0.65)
    assert "slowtok sees no reason for it" in finding.summary


def test_half_of_its_own_best_is_slow_prefill_whatever_the_reason() -> None:
    known = replace(prefilled(1_950.0, prompt=4_000), history=History(best_prefill_tps=8_000.0))
    [cause] = diagnose(known).findings

    assert cause == "slow-prefill"
    assert diagnose(known).findings[cause].confidence == 0.65


def test_a_slower_link_makes_it_dearer() -> None:
    def lost_s(generation: int) -> float:
        slow = with_readings(split(512, tps=200.0), pcie_generation=generation)
        finding = found(slow_prefill, slow)
        return finding.lost_s

    assert lost_s(3) > lost_s(4)
