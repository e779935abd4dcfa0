from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import with_device, with_server, with_timeline
from fakes.cause_tests import fires, found, quiet
from fakes.clock_cases import clocks_stuck, known, slower_from
from fakes.clock_cases import gpu_fault as firing
from fakes.gpu_cases import HEALTHY_MS, gpu_case, with_readings
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import UNNAMED
from slowtok.detectors.causes.gpu import gpu_fault
from slowtok.detectors.causes.gpu.gpu_fault import XIDS


def counted(before: Case, name: str, **more: Any) -> Case:
    """The case with this count one higher from the fifth second on."""
    readings = {"xid": None, "xids": 0, name: lambda t: 3 if t > 5 else 2, **more}
    return with_readings(before, **readings)


def lost() -> Case:
    """The GPU was lost after five seconds; its samples end, the request hangs on."""
    before = with_device(gpu_case(), gpus_reason="GPU 0: GPU is lost")
    ended_s = before.gpu[0].at_s + 30.0
    samples = tuple(s for s in before.gpu if s.at_s < before.gpu[0].at_s + 5)
    return with_timeline(replace(before, gpu=samples), ended="upstream-error", ended_at_s=ended_s)


def slowed(*, at_s: float, token: int, xid: int = 92) -> Case:
    """Four times slower from a token on, with an error that was reported at a time."""
    slow = known(gpu_case(ms_per_token=3 * HEALTHY_MS))
    slow = slower_from(slow, token, 4.0)
    return with_readings(
        slow, xid=lambda t: xid if t > at_s else None, xids=lambda t: int(t > at_s)
    )


def slow_throughout(*, at_s: float, xid: int = 92) -> Case:
    """Three times slower all along."""
    return with_readings(
        known(gpu_case(ms_per_token=3 * HEALTHY_MS)),
        xid=lambda t: xid if t > at_s else None,
        xids=lambda t: int(t > at_s),
    )


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_server(firing(), gpu_layers=0), id="told to use no GPU"),
    pytest.param(with_server(firing(), gpu_indices=()), id="the server uses no GPU"),
    pytest.param(with_readings(known(gpu_case()), xid=79, xids=2), id="errors of before"),
    pytest.param(with_readings(gpu_case(), ecc_errors=7, remapped_rows=2), id="counts of before"),
    pytest.param(with_readings(gpu_case(), xids=None), id="errors are not told here"),
    pytest.param(
        with_device(gpu_case(), gpus_reason="GPU 1: GPU is lost"), id="another GPU was lost"
    ),
    pytest.param(
        with_device(gpu_case(), gpus_reason="GPU 0: GPU is lost"), id="lost, and back by then"
    ),
    pytest.param(clocks_stuck(), id="stuck, without an error"),
]
FIRING = [
    pytest.param(firing(), 4.0, "the answer stopped there and {lost} were lost", id="a stall"),
    pytest.param(firing(), 4.0, "(sudo nvidia-smi -r -i 0)", id="what to do"),
    pytest.param(
        counted(firing(), "ecc_errors"), 4.0, "1 uncorrectable memory error)", id="memory"
    ),
    # 23.4 s of decode; the rate falls at 2.5 s to a quarter
    pytest.param(
        slowed(at_s=3.0, token=300), 15.7, "more slowly from then on", id="slower from then on"
    ),
    pytest.param(slow_throughout(at_s=0.1), 15.6, "slow from then on", id="slow after it"),
]
TOLD = [
    pytest.param(
        with_readings(gpu_case(), xid=79, xids=lambda t: int(t > 3)), "fell off the bus", id="79"
    ),
    pytest.param(
        with_timeline(
            with_readings(gpu_case(), xid=31, xids=lambda t: int(t > 3)), ended="upstream-error"
        ),
        "perhaps of another program",
        id="31, and the engine's answer broke off",
    ),
    pytest.param(
        with_readings(gpu_case(), xid=250, xids=lambda t: int(t > 3)), "NVIDIA's catalogue", id="?"
    ),
    pytest.param(counted(gpu_case(), "remapped_rows"), "1 bad memory row was", id="remapped"),
    pytest.param(lost(), "the driver lost the GPU", id="lost"),
    pytest.param(slow_throughout(at_s=9.0), "92", id="slow before it already"),
    pytest.param(slowed(at_s=15.0, token=300), "92", id="slower long before it"),
]
OF_ANOTHER_PROGRAM = [
    pytest.param(
        with_readings(gpu_case(), xid=13, xids=lambda t: int(t > 3)), id="the answer was healthy"
    ),
    pytest.param(slow_throughout(at_s=0.1, xid=31), id="the answer was slow, for another reason"),
]


test_quiet = quiet(gpu_fault, QUIET)
test_fires = fires(gpu_fault, "lost_s said", FIRING)


@pytest.mark.parametrize(("case", "said"), TOLD)
def test_an_error_that_cost_no_time_is_told_and_charged_with_nothing(case: Case, said: str) -> None:
    finding = found(gpu_fault, case)

    assert finding.informational
    assert finding.lost_s == 0
    assert "{lost}" not in finding.summary
    assert said in finding.summary


@pytest.mark.parametrize("case", OF_ANOTHER_PROGRAM)
def test_a_programs_own_error_is_not_named_beside_a_whole_answer(case: Case) -> None:
    assert gpu_fault.detect(case) is UNNAMED


def test_every_known_error_has_words_and_a_remedy() -> None:
    for said, remedy in XIDS.values():
        assert said.isascii()
        assert remedy.format(index=0).isascii()
        assert not remedy.endswith(".")


def test_a_stall_at_another_time_is_not_the_errors() -> None:
    early = with_readings(firing(), xids=lambda t: int(t > 9.5))
    finding = found(gpu_fault, early)

    assert finding.lost_s == pytest.approx(4.0, rel=0.02)  # the stall ended at 7.3 s, within 3 s

    late = with_readings(firing(), xids=lambda t: int(t > 10.8))
    finding = found(gpu_fault, late)
    assert finding.informational
