from dataclasses import replace

import pytest

from fakes.cases import with_server
from fakes.cause_tests import fires, found, lacks, quiet
from fakes.clock_cases import (
    at_clock,
    hardware_slowdown,
    hot_mac,
    power_cap,
    stuck_amd,
    stuck_spark,
    thermal_throttle,
)
from fakes.clock_cases import clocks_stuck as firing
from fakes.gpu_cases import RTX_3090, SERVER, gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case, History
from slowtok.detectors.causes.gpu import clocks_stuck


def memory_stuck() -> Case:
    """P8 under load: the memory at 5,001 MHz."""
    return at_clock(1905, times=1.54, reasons=0x0, memory_clock_mhz=5001, pstate=8)


def on_two_gpus() -> Case:
    one = firing()
    other = tuple(replace(s, index=1) for s in one.gpu)
    both = replace(one, gpu=one.gpu + other, server=replace(SERVER, gpu_indices=(0, 1)))
    cards = (RTX_3090, replace(RTX_3090, index=1))
    both = replace(both, device=replace(both.device, gpus=cards))
    return with_readings(both, busy_ratio=0.48, sm_clock_mhz=500)


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(with_readings(firing(), busy_ratio=0.4), id="starved: not busy"),
    pytest.param(with_readings(firing(), reasons=0x1), id="starved: it says that it idles"),
    pytest.param(
        with_readings(firing(), pcie_rx_bytes_per_s=12e9), id="starved: weights over the bus"
    ),
    pytest.param(
        with_server(firing(), gpu_layers=20), id="starved: layers on the CPU (llama.cpp#26024)"
    ),
    pytest.param(
        with_readings(
            with_card(gpu_case(), max_sm_clock_mhz=2625),
            busy_ratio=0.35,
            sm_clock_mhz=1890,
            power_w=16.0,
        ),
        id="1,890 MHz, 16 W, nothing lost",
    ),
    pytest.param(
        with_readings(firing(), sm_clock_mhz=lambda t: 210 if t < 1.5 else 1905),
        id="clocks that rise in the first second",
    ),
    pytest.param(
        with_readings(firing(), sm_clock_mhz=lambda t: 700 if t < 6 else 1905),
        id="low for half of the time only",
    ),
    pytest.param(with_readings(gpu_case(), sm_clock_mhz=700, reasons=0), id="no loss at all"),
    pytest.param(power_cap(), id="the power limit"),
    pytest.param(thermal_throttle(), id="heat"),
    pytest.param(hardware_slowdown(), id="the brake"),
    pytest.param(hot_mac(), id="Apple: cannot be locked"),
]
FIRING = [
    pytest.param(firing(), 5.37, "sudo nvidia-smi -i 0 -rgc", id="locked"),
    pytest.param(memory_stuck(), 4.2, "in the low state P8", id="memory in a low state"),
    pytest.param(memory_stuck(), 4.2, "memory at 5,001 instead of about 9,501", id="and its clock"),
    pytest.param(stuck_spark(), 10.4, "unplug it for a minute", id="GB10 at 799 MHz (trap 124)"),
    pytest.param(stuck_amd(), 8.6, "rocm-smi", id="AMD at 41 MHz (legacy-rocm-build#6289)"),
    pytest.param(on_two_gpus(), 6.4, "was 48 % busy", id="layers on two GPUs take turns"),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(with_readings(firing(), busy_ratio=None), "GPU utilisation", id="no load"),
    pytest.param(
        with_readings(firing(), sm_clock_mhz=None, memory_clock_mhz=None),
        "clocks of the GPU",
        id="no clocks",
    ),
]


test_quiet = quiet(clocks_stuck, QUIET)
test_fires = fires(clocks_stuck, "lost_s said", FIRING, rel=0.05)
test_names_the_missing_fact = lacks(clocks_stuck, MISSING)


def test_a_reading_that_some_cards_may_always_show_is_hardly_believed() -> None:
    unseen = found(clocks_stuck, replace(stuck_amd(), history=History()))

    assert unseen.confidence < 0.5
