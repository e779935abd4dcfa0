"""Arithmetic on GPU samples."""

import pytest

from slowtok.detectors.analysis.gpu import gpu_window
from slowtok.detectors.case.clocks_event import BRAKE_BITS, THERMAL_BITS
from slowtok.detectors.case.machine import GpuSample


def samples(**readings: list[float | None]) -> tuple[GpuSample, ...]:
    count = len(next(iter(readings.values())))
    return tuple(
        GpuSample(at_s=i * 0.5, index=0, **{k: v[i] for k, v in readings.items()})  # type: ignore[arg-type]
        for i in range(count)
    )


def test_nothing_known_is_nothing_said() -> None:
    none = samples(power_w=[None, None])
    assert gpu_window.median(none, lambda s: s.power_w) is None
    assert gpu_window.most(none, lambda s: s.power_w) is None
    assert gpu_window.newest(none, lambda s: s.power_w) is None
    assert gpu_window.gained(none, lambda s: s.energy_j) is None
    assert gpu_window.gained_ratio(none, lambda s: s.throttled_power_ns) is None
    assert gpu_window.share_with_bits(none, THERMAL_BITS) is None
    assert gpu_window.without_first_second(()) == ()


def test_readings() -> None:
    power = samples(power_w=[100, None, 300, 200])
    assert gpu_window.median(power, lambda s: s.power_w) == 200
    assert gpu_window.most(power, lambda s: s.power_w) == 300
    assert gpu_window.newest(power, lambda s: s.power_w) == 200


@pytest.mark.parametrize(
    ("counter", "gain"),
    [([5, 5], 0), ([5, None, 9], 4), ([5], None), ([9, 5], None), ([None, 5], None)],
)
def test_counters_are_differenced(counter: list[float | None], gain: float | None) -> None:
    assert gpu_window.gained(samples(energy_j=counter), lambda s: s.energy_j) == gain


def test_the_share_of_the_time_that_was_counted() -> None:
    half = samples(throttled_power_ns=[7e9, 7.25e9, 7.5e9])
    assert gpu_window.gained_ratio(half, lambda s: s.throttled_power_ns) == pytest.approx(0.5)
    more = samples(throttled_power_ns=[0, 9e9])
    assert gpu_window.gained_ratio(more, lambda s: s.throttled_power_ns) == 1.0


def test_bits() -> None:
    masks = samples(reasons=[0x1, 0x20, None, 0x24])
    assert gpu_window.share_with_bits(masks, THERMAL_BITS) == pytest.approx(2 / 3)
    assert gpu_window.share_with_bits(masks, BRAKE_BITS) == 0


def test_the_first_second_is_of_before() -> None:
    assert [s.at_s for s in gpu_window.without_first_second(samples(busy_ratio=[0] * 4))] == [
        1.0,
        1.5,
    ]


def test_each_gpu_has_its_own() -> None:
    mixed = (GpuSample(at_s=0, index=1), GpuSample(at_s=0, index=0), GpuSample(at_s=1, index=1))
    assert {i: len(found) for i, found in gpu_window.by_gpu(mixed).items()} == {0: 1, 1: 2}
