"""The rule for lower clocks against the sweeps that it was taken from; how losses are counted."""

from dataclasses import replace

import pytest

from fakes.clock_cases import KNOWN, at_clock, known, power_capped, slower_from
from fakes.gpu_cases import BUSY_GPU, RTX_3090, SERVER, gpu_case, with_readings
from slowtok.detectors.analysis.gpu.clock_loss import (
    is_laptop,
    loss,
    loss_without_clocks,
    observed_slowdown,
    since,
)
from slowtok.detectors.analysis.gpu.clocks import (
    MAX_SM_SHARE,
    Clocks,
    healthy,
    lost_ratio,
    serving_samples,
    slower,
)
from slowtok.detectors.case.case import Baseline, Case, Envelope, History, Phase
from slowtok.detectors.case.finding import Missing
from slowtok.detectors.case.machine import GpuSample

# phase, healthy and lower SM clock, rate there: noonghunna/club-3090, docs/img/power-cap-3090-*.py
MOE, DENSE, PREFILL = (1935, 137.73), (1680, 36.26), (1710, 1104.81)
MEASURED: list[tuple[Phase, tuple[int, float], int, float, float]] = [
    ("decode", MOE, 1755, 132.23, 0.02),
    ("decode", MOE, 1530, 122.57, 0.02),
    ("decode", MOE, 1290, 114.59, 0.02),
    ("decode", MOE, 900, 92.20, 0.03),
    ("decode", DENSE, 1380, 32.26, 0.05),
    ("decode", DENSE, 975, 25.17, 0.12),
    ("decode", DENSE, 825, 21.58, 0.17),
    ("prefill", PREFILL, 1350, 906.79, 0.02),
    ("prefill", PREFILL, 735, 542.04, 0.02),
]


def every(sample: GpuSample) -> bool:
    return True


def hot(sample: GpuSample) -> bool:
    return bool((sample.reasons or 0) & 0x20)


@pytest.mark.parametrize(("phase", "best", "mhz", "rate", "off"), MEASURED)
def test_the_rule_is_near_what_was_measured(
    phase: Phase, best: tuple[int, float], mhz: int, rate: float, off: float
) -> None:
    good, now = Clocks(sm=best[0], memory=9501), Clocks(sm=mhz, memory=9501)

    assert slower(now, good, phase) == pytest.approx(best[1] / rate, rel=off)


def test_half_the_memory_clock_takes_away_most_of_the_speed() -> None:
    """RTX 5090 at 7,001 instead of 14,001 MHz: 518.82 instead of 805.21 tokens/s."""
    good, now = Clocks(sm=3090, memory=14001), Clocks(sm=3090, memory=7001)

    assert slower(now, good, "decode") == pytest.approx(805.21 / 518.82, rel=0.05)


def test_clocks_that_are_not_known_or_higher_cost_nothing() -> None:
    nothing = Clocks(sm=None, memory=None)
    assert slower(nothing, Clocks(sm=1900, memory=9501), "decode") is None
    assert slower(Clocks(sm=1900, memory=9501), nothing, "decode") is None
    assert slower(Clocks(sm=2000, memory=None), Clocks(sm=1900, memory=9501), "decode") == 1.0


def test_healthy_is_what_the_card_allows_until_it_was_seen() -> None:
    case, samples = gpu_case(), (replace(BUSY_GPU, sm_clock_mhz=900, memory_clock_mhz=5001),)

    first = healthy(case, RTX_3090, samples)
    assert (first.sm, first.memory, first.own) == (0.8 * 2100, 0.95 * 9751, False)

    seen = healthy(replace(case, history=KNOWN), RTX_3090, samples)
    assert (seen.sm, seen.memory, seen.own) == (1905, 9501, True)


def test_history_is_of_one_gpu_and_says_nothing_of_two() -> None:
    case = gpu_case(server=replace(SERVER, gpu_indices=(0, 1)))
    case = replace(case, history=History(best_sm_clock_mhz=2900))

    assert healthy(case, RTX_3090, case.gpu).sm == 1905


def test_only_the_time_that_shows_the_cause_counts() -> None:
    half = with_readings(
        gpu_case(),
        sm_clock_mhz=lambda t: 900 if t > 4 else 1905,
        reasons=lambda t: 0x20 if t > 4 else 0x4,
    )
    good = healthy(half, RTX_3090, half.gpu)
    whole = 1 - 1 / (0.6 + 0.4 * 1905 / 900)

    assert lost_ratio(half.gpu, good, "decode", hot) == pytest.approx(whole / 2, rel=0.05)
    assert lost_ratio(half.gpu, good, "decode", lambda s: False) == 0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(known(gpu_case()), id="healthy"),
        pytest.param(at_clock(1500, times=1.0), id="low, but as fast as ever"),
        pytest.param(at_clock(1700, times=2.0), id="slow, but the clock explains little"),
        pytest.param(at_clock(900, times=4.0), id="far slower than the clock explains"),
        pytest.param(known(gpu_case(ms_per_token=20, completion=60)), id="too short"),
    ],
)
def test_no_loss(case: Case) -> None:
    assert loss(case, every) is None


def test_a_loss_is_the_share_of_the_time() -> None:
    found = loss(at_clock(900, times=1.447), every)

    assert found is not None
    assert found.lost_s == pytest.approx(found.duration_s * (1 - 1 / 1.447), rel=0.01)
    assert found.measured_s == pytest.approx(found.lost_s, rel=0.03)
    assert found.said == "processors at 900 instead of about 1,905 MHz"


@pytest.mark.parametrize(("phase", "best", "mhz", "rate", "off"), MEASURED)
def test_nothing_that_was_measured_lost_more_than_the_most(
    phase: Phase, best: tuple[int, float], mhz: int, rate: float, off: float
) -> None:
    good, now = Clocks(sm=best[0], memory=9501), Clocks(sm=mhz, memory=9501)
    most = slower(now, good, phase, MAX_SM_SHARE)

    assert most is not None
    assert most * 1.01 > best[1] / rate


def test_the_dense_model_of_the_sweep_is_explained_where_it_is_told_why() -> None:
    case = power_capped(limit_w=230, sm_mhz=825, times=36.26 / 21.58)
    told, untold = loss(case, every), loss(case, every, is_told=False)

    assert told is not None
    assert untold is not None
    assert told.lost_s == pytest.approx(told.measured_s)
    assert untold.lost_s == pytest.approx(told.measured_s)


def test_low_clocks_that_nobody_explains_cost_what_they_usually_cost_at_least() -> None:
    case = at_clock(900, times=1.2)
    told, untold = loss(case, every), loss(case, every, is_told=False)

    assert told is not None
    assert untold is not None
    assert told.lost_s == pytest.approx(told.duration_s * (1 - 1 / 1.2), rel=0.01)
    assert untold.lost_s == pytest.approx(told.duration_s * (1 - 1 / 1.447), rel=0.01)


def test_more_than_the_clocks_may_cost_is_not_charged_to_them() -> None:
    found = loss(at_clock(900, times=2.4), every)

    assert found is not None
    assert found.lost_s == pytest.approx(found.duration_s * (1 - 1 / (0.3 + 0.7 * 1995 / 900)))


def test_where_clocks_are_not_told_there_is_only_what_was_lost() -> None:
    found = loss_without_clocks(at_clock(900, times=2.0))

    assert found is not None
    assert found.lost_s == pytest.approx(found.duration_s / 2, rel=0.01)
    assert found.said == ""
    assert loss_without_clocks(known(gpu_case())) is None


def test_layers_on_two_gpus_take_turns_and_tensor_parallel_waits_for_the_slowest() -> None:
    one = at_clock(500, times=2.2)
    other = tuple(replace(s, index=1, sm_clock_mhz=1905) for s in one.gpu)
    both = replace(one, gpu=one.gpu + other, server=replace(SERVER, gpu_indices=(0, 1)))
    tensor = replace(both, server=replace(both.server, split_mode="tensor"))
    layered, waiting = loss(both, every), loss(tensor, every)

    assert layered is not None
    assert waiting is not None
    most_ratio = 1 - 1 / (0.3 + 0.7 * 0.95 * 2100 / 500)  # of two GPUs no best is known
    assert layered.lost_s == pytest.approx(layered.duration_s * most_ratio / 2, rel=0.01)
    assert waiting.lost_s == pytest.approx(waiting.duration_s * (1 - 1 / 2.2), rel=0.01)
    assert layered.gpu.index == 0


def test_an_idle_gpu_takes_no_part_where_it_is_not_known_which_serve() -> None:
    one = gpu_case(server=replace(SERVER, gpu_indices=None))
    idle = tuple(replace(s, index=1, busy_ratio=0.01) for s in one.gpu)

    assert set(serving_samples(replace(one, gpu=one.gpu + idle), "decode")) == {0}


def test_a_throttle_that_began_is_dated() -> None:
    case = with_readings(
        slower_from(at_clock(900, times=1.6), token=400, times=2.0),
        sm_clock_mhz=lambda t: 600 if t > 3.2 else 1905,
        reasons=lambda t: 0x20 if t > 3.2 else 0x4,
    )
    found = loss(case, hot)

    assert found is not None
    word, number = since(case, found, hot).removesuffix(" on").rsplit(" ", 1)
    assert word == " from token"
    assert int(number) == pytest.approx(400, abs=40)
    assert since(case, found, every) != ""
    assert since(case, found, lambda s: False) == ""


def test_a_constant_throttle_is_not_dated() -> None:
    case = at_clock(900, times=1.45, reasons=0x20)
    found = loss(case, hot)

    assert found is not None
    assert since(case, found, hot) == ""


def test_a_slow_prefill_is_held_against_what_it_should_give() -> None:
    slow = gpu_case(prompt=8000, prefill_s=30.0)
    assert slow.envelope.expected_prefill_tps is not None

    assert observed_slowdown(slow, "prefill") == pytest.approx(
        slow.envelope.expected_prefill_tps / (8000 / 30.0)
    )
    assert observed_slowdown(gpu_case(), "prefill") == 1.0


def test_a_laptop_has_a_battery_or_says_so() -> None:
    case = gpu_case()
    assert not is_laptop(case, RTX_3090)
    assert is_laptop(case, replace(RTX_3090, name="NVIDIA GeForce RTX 4060 Laptop GPU"))
    assert is_laptop(replace(case, device=replace(case.device, on_battery=False)), RTX_3090)


def test_what_is_not_known_is_named() -> None:
    blind = with_readings(at_clock(900, times=1.45), sm_clock_mhz=None, memory_clock_mhz=None)
    with pytest.raises(Missing, match="clocks of the GPU"):
        loss(blind, every)
    slow = at_clock(900, times=1.45)
    unexpected = replace(slow, envelope=Envelope(), baseline=Baseline())
    with pytest.raises(Missing, match="decode rate expected"):
        loss(unexpected, every)
