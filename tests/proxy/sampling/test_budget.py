"""The pace of sampling; time and cost are data."""

from dataclasses import fields
from itertools import pairwise

import pytest

from slowtok.proxy.sampling.budget import (
    BURST_S,
    FIRST_PATIENCE_S,
    LIMIT_RATIO,
    MAX_PATIENCE_S,
    PACES,
    Budget,
    SamplingPace,
    hidden,
    slowed,
)

LAST = len(PACES) - 1


def published_ratio(pace: SamplingPace, gpus: int) -> float:
    """Return what the calls of some GPUs take by the costs published for an RTX 5090."""
    traffic_s = 0.0004 / pace.gpu_s if not pace.traffic_s else 0.0008 / pace.traffic_s
    each = 12e-6 / pace.gpu_s + 0.00033 / pace.lists_s + 0.0017 / pace.shares_s
    return gpus * (traffic_s + each + 0.0026 / pace.energy_s + 0.0012 / 15)


def after(budget: Budget, seconds: int, ratio: float) -> int:
    for _ in range(seconds):
        budget.spend(ratio, 1.0)
    return budget.level


@pytest.mark.parametrize("ratio", [0.0, 0.005, LIMIT_RATIO])
def test_what_fits_is_never_slowed(ratio: float) -> None:
    assert after(Budget(), 3600, ratio) == 0


def test_a_short_burst_is_let_pass() -> None:
    budget = Budget()
    for _ in range(20):
        assert not budget.spend(BURST_S * 0.9, 1.0)
        assert after(budget, 9, 0.004) == 0


@pytest.mark.parametrize(("ratio", "seconds"), [(0.0094, 15), (0.02, 2), (0.05, 1)])
def test_the_dearer_the_sooner_it_is_slowed(ratio: float, seconds: int) -> None:
    budget = Budget()

    assert after(budget, seconds - 1, ratio) == 0
    assert after(budget, 1, ratio) >= 1


def test_much_too_dear_skips_levels() -> None:
    assert after(Budget(), 1, 0.1) == 4


def test_what_never_fits_stays_at_the_slowest() -> None:
    assert after(Budget(), 600, 0.02) == LAST


def test_room_brings_back_one_level_at_a_time() -> None:
    budget = Budget()
    after(budget, 1, 0.1)

    assert [after(budget, 15, 0.003) for _ in range(5)] == [3, 2, 1, 0, 0]


def test_little_room_changes_nothing() -> None:
    budget = Budget()
    after(budget, 3, 0.02)

    assert after(budget, 3600, 0.007) == 1


def test_tries_that_fail_grow_rare() -> None:
    budget = Budget()
    after(budget, 3, 0.02)
    tries = 0
    for _ in range(3600):  # level 1 has room, and level 0 is too slow_tier
        tries += budget.spend(0.02 if budget.level == 0 else 0.004, 1.0) and budget.level == 0

    assert FIRST_PATIENCE_S * 2**3 < MAX_PATIENCE_S
    assert 5 <= tries <= 12


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_some_pace_fits_whatever_was_published(gpus: int) -> None:
    budget, own, total_s = Budget(), 0.003, 0.0
    for second in range(600):
        spent_s = own + published_ratio(budget.pace, gpus)
        budget.spend(spent_s, 1.0)
        total_s += spent_s if second >= 60 else 0.0

    assert total_s / 540 <= 0.01
    assert budget.level < LAST


def test_each_level_costs_less() -> None:
    ratios = [published_ratio(pace, 8) for pace in PACES]

    assert all(later < earlier for earlier, later in pairwise(ratios))
    for field in fields(SamplingPace):
        periods = [getattr(pace, field.name) for pace in PACES]
        assert periods == sorted(periods)


def test_a_decode_of_two_seconds_has_samples_at_any_pace() -> None:
    assert all(2.0 / pace.gpu_s >= 5 for pace in PACES)


@pytest.mark.parametrize(
    ("level", "lost"),
    [
        (0, set()),
        (1, set()),
        (2, set()),
        (3, {"PCIe traffic during short requests"}),
        (
            4,
            {"PCIe traffic during short requests", "GPU use of each process during short requests"},
        ),
    ],
)
def test_only_what_is_taken_away_is_hidden(level: int, lost: set[str]) -> None:
    assert set(hidden(slowed(PACES[level]))) == lost


def test_what_was_slowed_is_named_with_its_period() -> None:
    assert slowed(PACES[0]) == {}
    assert slowed(PACES[1]) == {"traffic_s": 0.5, "energy_s": 15.0}
