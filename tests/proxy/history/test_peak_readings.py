"""The best clocks and power under load."""

from dataclasses import replace

from fakes.cases import healthy, with_server
from fakes.gpu_cases import DEVICE, RTX_3090, gpu_case, with_readings
from slowtok.detectors.case.case import Case
from slowtok.proxy.history.peak_readings import Best, PeakReadings, seen_in

DAY = int(1.8e9 // 86_400)


def on_two_cards(second: str) -> Case:
    cards = (RTX_3090, replace(RTX_3090, index=1, uuid="GPU-2", name=second))
    return with_server(gpu_case(device=replace(DEVICE, gpus=cards)), gpu_indices=(0, 1))


def test_nothing_is_seen_without_a_gpu() -> None:
    assert seen_in(healthy()) == []
    assert PeakReadings().of(healthy()) is None


def test_an_idle_gpu_shows_nothing() -> None:
    assert seen_in(with_readings(gpu_case(), busy_ratio=0.79)) == []
    assert seen_in(with_readings(gpu_case(), busy_ratio=None)) == []


def test_a_gpu_that_does_not_serve_shows_nothing() -> None:
    assert seen_in(with_server(gpu_case(), gpu_indices=())) == []


def test_a_request_counts_with_its_median_under_load() -> None:
    peaked = with_readings(
        gpu_case(),
        sm_clock_mhz=lambda s: 2100 if s < 1 else 1905,
        busy_ratio=lambda s: 0.1 if 2 < s < 3 else 0.97,
    )

    assert seen_in(peaked) == [
        Best(gpu="GPU-3090", day=DAY, sm_clock_mhz=1905, memory_clock_mhz=9501, power_w=335.0)
    ]


def test_what_is_not_read_is_not_known() -> None:
    (best,) = seen_in(with_readings(gpu_case(), power_w=None))

    assert (best.sm_clock_mhz, best.power_w) == (1905, None)


def test_a_better_one_counts_from_then_on() -> None:
    bests = PeakReadings()
    bests.add(Best(gpu="GPU-3090", day=DAY, power_w=300.0))
    assert bests.of(gpu_case()) == Best(gpu="", day=DAY, power_w=300.0)

    bests.add(Best(gpu="GPU-3090", day=DAY, power_w=310.0))

    assert bests.of(gpu_case()) == Best(gpu="", day=DAY, power_w=310.0)


def test_the_highest_of_each_reading_counts() -> None:
    bests = PeakReadings()
    assert bests.add(Best(gpu="GPU-3090", day=DAY, sm_clock_mhz=1900, power_w=300.0))
    assert bests.add(Best(gpu="GPU-3090", day=DAY - 9, sm_clock_mhz=1800, power_w=320.0))
    assert not bests.add(Best(gpu="GPU-3090", day=DAY, sm_clock_mhz=1850))
    bests.add(Best(gpu="GPU-3090", day=DAY - 31, sm_clock_mhz=2500))
    bests.add(Best(gpu="another", day=DAY, sm_clock_mhz=2500))

    assert bests.of(gpu_case()) == Best(gpu="", day=DAY, sm_clock_mhz=1900, power_w=320.0)


def test_cards_that_are_not_alike_have_no_common_best() -> None:
    bests = PeakReadings()
    bests.add(Best(gpu="GPU-2", day=DAY, sm_clock_mhz=1900))

    assert bests.of(on_two_cards("another")) is None
    alike = bests.of(on_two_cards(RTX_3090.name or ""))
    assert alike is not None
    assert alike.sm_clock_mhz == 1900


def test_memory_is_bounded() -> None:
    bests = PeakReadings()
    for i in range(1001):
        bests.add(Best(gpu=str(i), day=DAY, power_w=1.0))

    assert bests.add(Best(gpu="0", day=DAY, power_w=1.0)), "it was forgotten"
    assert not bests.add(Best(gpu="1000", day=DAY, power_w=1.0))
