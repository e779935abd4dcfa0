from dataclasses import replace

import pytest

from fakes.cases import case, with_device, with_host, with_server
from fakes.cause_tests import fires, lacks, quiet
from fakes.clock_cases import (
    at_clock,
    hardware_slowdown,
    laptop,
    on_battery,
    power_cap,
    slower_from,
    thermal_throttle,
)
from fakes.clock_cases import low_power_mode as firing
from fakes.gpu_cases import gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.host import low_power_mode


def weak_adapter() -> Case:
    """open-gpu-kernel-modules#1162: a 65 W adapter, 25 W for the GPU; clock and rate assumed."""
    return at_clock(
        600, times=1.87, power_source="undersized", reasons=0x4, power_w=24.8, power_limit_w=25.0
    )


def unplugged() -> Case:
    """Battery from token 300 on."""
    cut = slower_from(at_clock(500, times=1.7), token=300, times=2.1)
    return with_readings(
        cut,
        sm_clock_mhz=lambda t: 500 if t > 2.4 else 1905,
        power_source=lambda t: "battery" if t > 3 else "ac",
        reasons=0x4,
    )


def limit_fell() -> Case:
    """Dynamic Boost: 100 W, then 40 W, with nobody speaking of the power source."""
    moved = with_readings(
        laptop(at_clock(500, times=1.7)),
        power_limit_w=lambda t: 40.0 if t > 2 else 100.0,
        power_w=40.0,
    )
    return with_card(moved, max_power_limit_w=None, default_power_limit_w=None)


def governor(mhz: float | None, ms_per_token: float = 16.0) -> Case:
    slow = with_host(case(ms_per_token=ms_per_token), cpu_mhz=mhz)
    return with_device(slow, cpu_governor="powersave")


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(laptop(gpu_case(), on_battery=True), id="on battery, clocks and rate as ever"),
    pytest.param(
        laptop(with_readings(firing(), sm_clock_mhz=1150)), id="slow, and the clock as ever"
    ),
    pytest.param(
        with_readings(firing(), power_limit_w=35.0, power_w=34.9), id="a usual limit on mains"
    ),
    pytest.param(with_readings(firing(), reasons=0x0), id="the limit does not bind"),
    pytest.param(
        with_card(with_readings(firing(), power_limit_w=None), max_power_limit_w=None),
        id="no word and no limit",
    ),
    pytest.param(
        laptop(with_readings(firing(), busy_ratio=0.39), on_battery=True),
        id="on battery, and starved by layers on the CPU (llama.cpp#17880)",
    ),
    pytest.param(
        laptop(with_readings(firing(), reasons=0x1), on_battery=True), id="it says that it idles"
    ),
    pytest.param(power_cap(), id="a limit on a card that is not a laptop's"),
    pytest.param(thermal_throttle(), id="heat"),
    pytest.param(laptop(hardware_slowdown(), on_battery=True), id="the brake"),
    pytest.param(governor(3800.0), id="powersave of intel_pstate: clocks up under load"),
    pytest.param(governor(1100.0, ms_per_token=6.7), id="a low clock, and the rate as ever"),
    pytest.param(with_host(case(ms_per_token=16.0), cpu_mhz=1100.0), id="nobody saves power"),
]
FIRING = [
    pytest.param(firing(), 14.3, "its power limit is down to 25 W", id="ThinkPad (ogkm#1310)"),
    pytest.param(firing(), 14.3, "without nvidia-powerd", id="what to do"),
    pytest.param(weak_adapter(), 6.8, "its adapter is too weak", id="65 W adapter (ogkm#1162)"),
    pytest.param(
        laptop(at_clock(600, times=1.87), on_battery=True), 6.8, "runs on battery", id="battery"
    ),
    pytest.param(
        laptop(at_clock(600, times=1.87), power_profile="low-power"),
        6.8,
        "powerprofilesctl set performance",
        id="profile",
    ),
    pytest.param(unplugged(), 5.45, "back from token 30", id="from a token on"),
    pytest.param(limit_fell(), 5.45, "its power limit is down to 40 W", id="a limit that moved"),
    pytest.param(on_battery(), 4.2, "cores ran at 1,100 MHz", id="the CPU, on battery"),
    pytest.param(governor(1100.0), 4.2, "cpupower frequency-set -g performance", id="the governor"),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(governor(None), "clock of the CPU", id="no clock of the CPU"),
    pytest.param(
        with_readings(weak_adapter(), sm_clock_mhz=None, memory_clock_mhz=None),
        "clocks of the GPU",
        id="no clocks of the GPU",
    ),
]


test_quiet = quiet(low_power_mode, QUIET)
test_fires = fires(low_power_mode, "lost_s said", FIRING, rel=0.05)
test_names_the_missing_fact = lacks(low_power_mode, MISSING)
