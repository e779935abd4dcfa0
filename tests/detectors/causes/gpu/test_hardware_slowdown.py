from dataclasses import replace

import pytest

from fakes.cases import with_phases, with_server
from fakes.cause_tests import fires, lacks, quiet, unnamed
from fakes.clock_cases import clocks_stuck, counting, hot_mac, laptop, power_cap, thermal_throttle
from fakes.clock_cases import hardware_slowdown as firing
from fakes.gpu_cases import gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.gpu import hardware_slowdown


def uncounted(every_s: float = 0.0) -> Case:
    """A driver without the counter; the bit for one sample each so many seconds, or always."""
    return with_readings(
        firing(),
        throttled_power_brake_ns=None,
        reasons=lambda t: 0x8 if not every_s or t % every_s < 0.1 else 0x4,
    )


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(uncounted(every_s=2.0), id="single samples: changes of performance state"),
    pytest.param(
        with_readings(uncounted(), reasons=0x48, throttled_power_brake_ns=0), id="with the heat bit"
    ),
    pytest.param(thermal_throttle(), id="heat"),
    pytest.param(power_cap(), id="the power limit"),
    pytest.param(clocks_stuck(), id="no reason"),
    pytest.param(hot_mac(), id="a Mac: nothing to brake it from outside"),
]
PRESENT = [
    pytest.param(
        with_readings(gpu_case(), reasons=0x88, throttled_power_brake_ns=counting(0.9)),
        id="the brake, but clocks and rate as ever",
    ),
]
FIRING = [
    pytest.param(firing(), 6.23, "for 12.6 s", id="the brake, counted"),
    pytest.param(firing(), 6.23, "-pl 280", id="a lower limit from the facts"),
    pytest.param(uncounted(), 6.23, "again and again", id="0x8 throughout, no counter"),
    pytest.param(laptop(firing()), 6.23, "the adapter that came with", id="laptop"),
    pytest.param(with_readings(firing(), power_w=None), 6.23, "for 12.6 s", id="power not told"),
    pytest.param(
        with_card(firing(), default_power_limit_w=None),
        6.23,
        "own cable from the supply; if the GPU is still slowed down",
        id="no limit to lower",
    ),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(
        with_readings(firing(), reasons=None, throttled_power_brake_ns=None),
        "reasons for lower clocks",
        id="no reasons",
    ),
    pytest.param(with_phases(firing(), decode_s=None), "decode time", id="no decode time"),
]


test_quiet = quiet(hardware_slowdown, QUIET)
test_present_without_cost = unnamed(hardware_slowdown, PRESENT)
test_fires = fires(hardware_slowdown, "lost_s said", FIRING, rel=0.05)
test_names_the_missing_fact = lacks(hardware_slowdown, MISSING)
