from dataclasses import replace

import pytest

from fakes.cases import with_server
from fakes.cause_tests import fires, lacks, quiet, unnamed
from fakes.clock_cases import (
    clocks_stuck,
    hardware_slowdown,
    known,
    laptop,
    power_capped,
    thermal_throttle,
)
from fakes.clock_cases import power_cap as firing
from fakes.gpu_cases import gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Baseline, Case, History, Range
from slowtok.detectors.causes.gpu import power_cap

BEST = History(best_sm_clock_mhz=1680, best_power_w=340.0)


def prefill_capped() -> Case:
    """The same sweep: prefill of 1,104.81 tokens/s at 1,710 MHz is 542.04 at 190 W and 735 MHz."""
    slow = gpu_case(prompt=8000, prefill_s=8.0)
    expected_tps = 8000 / 8.0 * 1104.81 / 542.04
    capped = with_readings(
        slow,
        sm_clock_mhz=lambda t: 735 if t < 8 else 1905,
        power_w=189.7,
        power_limit_w=190.0,
        throttled_power_ns=None,
    )
    band = replace(slow.envelope, expected_prefill_tps=expected_tps)
    assert band.prefill is not None
    band = replace(band, prefill=replace(band.prefill, low=0.7 * expected_tps))
    return replace(capped, envelope=band, history=History(best_sm_clock_mhz=1710))


def amd(power_w: float) -> Case:
    bare = with_readings(firing(), reasons=None, throttled_power_ns=None, power_w=power_w)
    return with_card(bare, vendor="amd")


def without_clocks(before: Case) -> Case:
    """The instrument tells no clocks."""
    return with_readings(before, sm_clock_mhz=None, memory_clock_mhz=None)


def first_seen() -> Case:
    """The same card at the first request: neither its rate nor its clocks were seen before."""
    slow = replace(firing(), history=History(), baseline=Baseline())
    return replace(slow, envelope=replace(slow.envelope, decode=Range(low=100.0, high=150.0)))


def moved() -> Case:
    """A laptop whose limit fell within the request."""
    return with_readings(
        laptop(firing()), power_limit_w=lambda t: 230.0 if t > 3 else 350.0, power_w=229.0
    )


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(hardware_slowdown(), id="the brake"),
    pytest.param(clocks_stuck(), id="no reason"),
    pytest.param(amd(power_w=150.0), id="AMD, power below the limit"),
]
PRESENT = [
    pytest.param(gpu_case(), id="healthy: the power bit in every sample"),
    pytest.param(
        power_capped(limit_w=330, sm_mhz=1545, times=36.26 / 34.57), id="330 W: 5 % (club-3090)"
    ),
    pytest.param(
        with_readings(
            with_card(known(gpu_case()), default_power_limit_w=420.0),
            power_limit_w=315.0,
            power_w=314.0,
            sm_clock_mhz=1507,
        ),
        id="315 W in each sample, 1,507 MHz, nothing lost (ninfer-3090#72)",
    ),
    pytest.param(
        with_readings(firing(), power_limit_w=350.0, power_w=349.0), id="the limit is the default"
    ),
    pytest.param(with_readings(firing(), power_w=120.0), id="the limit is far from drawn"),
    pytest.param(with_readings(firing(), throttled_power_ns=5_000), id="the counter does not grow"),
    pytest.param(
        with_readings(firing(), sm_clock_mhz=1600), id="slow, and the clock nearly as ever"
    ),
    pytest.param(laptop(firing()), id="a laptop: its default means nothing"),
    pytest.param(thermal_throttle(), id="heat"),
    pytest.param(
        without_clocks(power_capped(limit_w=300, sm_mhz=1500, times=2.0)),
        id="no clocks, and half of the rate is gone with a fifth of the power",
    ),
    pytest.param(without_clocks(known(gpu_case())), id="no clocks, and as fast as ever"),
    pytest.param(
        without_clocks(with_readings(firing(), power_w=120.0)),
        id="no clocks, and the limit is far from drawn",
    ),
]
FIRING = [
    pytest.param(firing(), 5.3, "limited to 230 W (its default is 370 W)", id="230 W (club-3090)"),
    pytest.param(firing(), 5.3, "sudo nvidia-smi -i 0 -pl 370", id="the default from the facts"),
    pytest.param(
        replace(firing(), history=BEST), 5.3, "it drew 340 W before", id="it drew more before"
    ),
    pytest.param(prefill_capped(), 4.12, "prefill lost about", id="prefill at 190 W (club-3090)"),
    pytest.param(amd(power_w=229.0), 5.3, "--setpoweroverdrive 370", id="AMD at its limit"),
    pytest.param(first_seen(), 5.0, "825 instead of about 1,680 MHz", id="never seen before"),
    pytest.param(
        without_clocks(firing()), 4.95, "so its clocks fall", id="no clocks: 230 of 370 W at most"
    ),
    pytest.param(moved(), 5.3, "it drew 350 W before", id="a limit that moved"),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(
        with_readings(firing(), reasons=None, throttled_power_ns=None),
        "reasons for lower clocks",
        id="no reasons",
    ),
    pytest.param(
        with_readings(firing(), power_limit_w=None), "power limit in force", id="no limit"
    ),
    pytest.param(
        with_card(firing(), default_power_limit_w=None),
        "default power limit of the GPU",
        id="no default",
    ),
    pytest.param(
        with_readings(amd(power_w=229.0), power_w=None), "power of the GPU", id="AMD, no power"
    ),
]


test_quiet = quiet(power_cap, QUIET)
test_present_without_cost = unnamed(power_cap, PRESENT)
test_fires = fires(power_cap, "lost_s said", FIRING, rel=0.05)
test_names_the_missing_fact = lacks(power_cap, MISSING)
