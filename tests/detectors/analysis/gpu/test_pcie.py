import pytest

from fakes.gpu_cases import GIB, gpu_case, with_readings
from fakes.link_cases import GTX_1660
from slowtok.detectors.analysis.gpu.pcie import (
    LANE_BYTES_PER_S,
    REPLAYS_PER_LANE_MINUTE,
    link_at_work,
)
from slowtok.detectors.analysis.phase_loss import nearest_loss_s
from slowtok.detectors.case.case import Case


def test_link_is_the_best_that_was_seen_of_a_gpu_at_work() -> None:
    up_late = with_readings(
        gpu_case(), pcie_generation=lambda s: 1 if s < 2 else 3, pcie_width=lambda s: 8
    )
    link = link_at_work(up_late, 0)

    assert link is not None
    assert (link.generation, link.width) == (3, 8)
    assert link.is_degraded
    assert link.carries_bytes_per_s == pytest.approx(6.46e9, rel=0.01)
    assert link.could_carry_bytes_per_s == pytest.approx(25.8e9, rel=0.01)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(with_readings(gpu_case(), busy_ratio=0.0), id="idle"),
        pytest.param(with_readings(gpu_case(), busy_ratio=None), id="not known whether idle"),
        pytest.param(with_readings(gpu_case(), pstate=8), id="in a low state"),
        pytest.param(
            with_readings(gpu_case(), busy_ratio=lambda s: float(s % 1.5 < 0.9)),
            id="never busy for a whole second",
        ),
        pytest.param(with_readings(gpu_case(), pcie_width=None), id="not told"),
        pytest.param(with_readings(gpu_case(), pcie_generation=9), id="a generation to come"),
    ],
)
def test_link_that_cannot_be_judged_is_none(case: Case) -> None:
    assert link_at_work(case, 0) is None
    assert link_at_work(case, GTX_1660.index) is None


@pytest.mark.parametrize(
    ("replays", "too_many"),
    [
        pytest.param(0, False, id="none"),
        pytest.param(16, False, id="0.96 a lane and minute, rounded up"),
        pytest.param(17, True, id="more"),
    ],
)
def test_replays_are_held_against_a_minute_at_least(replays: int, *, too_many: bool) -> None:
    case = with_readings(gpu_case(), pcie_replays=lambda s: 1000 + (replays if s > 4 else 0))
    link = link_at_work(case, 0)

    assert link is not None
    assert link.replays is too_many


def test_each_generation_has_its_rates() -> None:
    assert set(LANE_BYTES_PER_S) == set(REPLAYS_PER_LANE_MINUTE)


@pytest.mark.parametrize(
    ("least_s", "most_s", "expected_s"),
    [
        pytest.param(1.0, 3.0, 3.0, id="more was lost than it can explain"),
        pytest.param(1.0, 30.0, 7.63, id="what was lost"),
        pytest.param(9.0, 30.0, 9.0, id="predicts more than was lost"),
        pytest.param(90.0, 300.0, 15.12, id="never all of the decode"),
    ],
)
def test_prediction_is_a_range(least_s: float, most_s: float, expected_s: float) -> None:
    slow = gpu_case(ms_per_token=15.6)

    assert nearest_loss_s(slow, least_s, most_s) == pytest.approx(expected_s, rel=0.01)


def test_a_link_in_the_fake_is_a_sound_one() -> None:
    link = link_at_work(gpu_case(), 0)

    assert link is not None
    assert not link.is_degraded
    assert not link.replays
    assert link.carries_bytes_per_s > 20 * GIB
