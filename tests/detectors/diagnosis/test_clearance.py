"""What can be ruled out for a request that was cut off."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.cases import (
    healthy,
    with_device,
    with_envelope,
    with_phases,
    with_server,
    with_timeline,
    with_tokens,
)
from fakes.firing import FIRING
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.detectors.diagnosis.catalog import CATALOG, cause_of, causes_with
from slowtok.detectors.diagnosis.clearance import GPU_CAUSES, could_apply, known_beforehand
from slowtok.detectors.diagnosis.diagnose import diagnose

WITHOUT: dict[str, Callable[[Case], Case]] = {
    "GPUs": lambda case: replace(with_device(case, gpus=None), gpu=()),
    "an engine here": lambda case: with_server(case, local=False),
    "leave to use GPUs": lambda case: with_server(case, gpu_layers=0),
    "samples of the host": lambda case: replace(case, host=()),
    "what a token reads": lambda case: with_envelope(case, kv_bytes=None),
    "anything": lambda case: replace(case, host=(), gpu=(), device=DeviceFacts()),
}
NOTHING = {"queue_s": None, "load_s": None, "prefill_s": None, "decode_s": None, "delivery_s": None}


def cut_off(**phases: float) -> Case:
    seen = with_phases(healthy(), decode_tps=None, prefill_tps=None, **{**NOTHING, **phases})
    return with_timeline(seen, ended="client-gone")


@pytest.mark.parametrize("cause", ["queued", "slow-prefill", "long-context", "thermal-throttle"])
def test_a_request_that_ended_by_itself_had_it_all(cause: str) -> None:
    assert could_apply(healthy(), cause)


def test_nothing_can_be_ruled_out_where_nothing_came() -> None:
    diagnosis = diagnose(cut_off())

    assert (diagnosis.verdict, diagnosis.cleared) == ("unknown", ())


@pytest.mark.parametrize(
    ("phases", "cause", "applies"),
    [
        ({"queue_s": 1.0}, "queued", True),
        ({"queue_s": 1.0}, "slow-reader", False),
        ({"prefill_s": 1.0}, "thermal-throttle", True),
        ({"prefill_s": 1.0}, "draft-rejected", False),
        ({"prefill_s": 1.0, "decode_s": 1.0}, "draft-rejected", True),
    ],
)
def test_only_phases_that_it_had(phases: dict[str, float], cause: str, applies: bool) -> None:
    assert could_apply(cut_off(**phases), cause) is applies


def test_the_causes_of_a_gpu_are_causes() -> None:
    assert {cause_of(detector) for detector in CATALOG} >= GPU_CAUSES


def test_a_phase_that_never_came_rules_nothing_out() -> None:
    left = with_timeline(with_phases(healthy(), delivery_s=None), ended="client-gone")
    diagnosis = diagnose(left)

    assert diagnosis.verdict == "normal"
    assert "queued" in diagnosis.cleared
    assert "slow-reader" not in diagnosis.cleared


@pytest.mark.parametrize("ended", ["stop", "client-gone"])
def test_what_could_not_be_judged_rules_nothing_out(ended: str) -> None:
    seen = with_phases(healthy(), decode_tps=None)
    diagnosis = diagnose(with_timeline(with_tokens(seen, completion=8), ended=ended))

    assert (diagnosis.verdict, diagnosis.cleared) == ("unknown", ())


@pytest.mark.parametrize("device", [healthy().device, DeviceFacts()])
def test_a_machine_that_nobody_read_is_not_ruled_out(device: DeviceFacts) -> None:
    diagnosis = diagnose(replace(healthy(), host=(), gpu=(), device=device))

    assert diagnosis.verdict == "normal"
    assert {"queued", "slow-prefill", "proxy-lag"} <= set(diagnosis.cleared)
    assert set(diagnosis.cleared) == causes_with(lambda traits: traits.in_exchange)


def answers(case: Case, causes: set[str]) -> dict[str, str | None]:
    """What the detectors of these causes say: the fact that is missing, None where ruled out."""
    said: dict[str, str | None] = {}
    for detector in CATALOG:
        if cause_of(detector) in causes:
            try:
                said[cause_of(detector)] = None
                assert detector.detect(case) is None, f"{cause_of(detector)} was found"
            except Missing as missing:
                said[cause_of(detector)] = missing.fact
    return said


@pytest.mark.parametrize("provoked", sorted(FIRING))
def test_what_is_known_beforehand_is_what_the_detectors_would_say(provoked: str) -> None:
    for lack, other in itertools.combinations_with_replacement(WITHOUT.values(), 2):
        case = other(lack(FIRING[provoked]()))
        known = known_beforehand(case)

        assert known
        assert answers(case, {*known}) == known


def test_nothing_is_known_beforehand_of_a_gpu_with_samples_of_the_host() -> None:
    case = FIRING["thermal-throttle"]()

    assert known_beforehand(case) == {}


def test_half_of_the_causes_need_a_gpu() -> None:
    known = known_beforehand(WITHOUT["GPUs"](healthy()))

    assert {*known} > GPU_CAUSES
    assert {*known.values()} == {None}
