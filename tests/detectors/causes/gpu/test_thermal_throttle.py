from dataclasses import replace

import pytest

from fakes.cases import with_phases, with_server
from fakes.cause_tests import fires, found, lacks, quiet, unnamed
from fakes.clock_cases import (
    at_clock,
    clocks_stuck,
    counting,
    hardware_slowdown,
    hot_mac,
    laptop,
    power_cap,
    slower_from,
)
from fakes.clock_cases import thermal_throttle as firing
from fakes.gpu_cases import gpu_case, with_card, with_readings
from slowtok.detectors.case.case import Case
from slowtok.detectors.causes.gpu import thermal_throttle


def bits_alone(margin_c: int | None = 1) -> Case:
    """A driver without the counters."""
    return with_readings(
        firing(),
        throttled_sw_thermal_ns=None,
        throttled_hw_thermal_ns=None,
        temperature_margin_c=margin_c,
    )


def sawtooth() -> Case:
    """Four seconds of heat, two of relief: clocks at a third for two thirds of the time."""
    return with_readings(
        at_clock(600, times=1.4),
        sm_clock_mhz=lambda t: 600 if t % 4 > 1.5 else 1905,
        reasons=lambda t: 0x24 if t % 4 > 1.5 else 0x4,
        temperature_c=90,
        temperature_margin_c=2,
        throttled_sw_thermal_ns=counting(0.62),
    )


def begins_late() -> Case:
    """From token 400 on, at 600 MHz: twice as long."""
    return with_readings(
        slower_from(at_clock(600, times=1.52), token=400, times=1.87),
        sm_clock_mhz=lambda t: 600 if t > 3.2 else 1905,
        reasons=lambda t: 0x24 if t > 3.2 else 0x4,
        temperature_c=93,
        temperature_margin_c=2,
        throttled_sw_thermal_ns=lambda t: int(1e12 + max(t - 3.2, 0) * 1e9),
    )


def hot_amd(margin_c: int) -> Case:
    hot = with_readings(bits_alone(margin_c), reasons=None)
    return with_card(hot, vendor="amd")


QUIET = [
    pytest.param(with_server(firing(), local=False), id="the engine is on another machine"),
    pytest.param(
        with_readings(gpu_case(), temperature_c=83, temperature_margin_c=0), id="83 C: at target"
    ),
    pytest.param(
        with_readings(firing(), throttled_sw_thermal_ns=903_158_000),
        id="a counter that is not zero, and does not grow (ollama#13552)",
    ),
    pytest.param(
        with_readings(firing(), throttled_sw_thermal_ns=counting(0.02)), id="2 % of the time"
    ),
    pytest.param(bits_alone(13), id="bits alone, 13 C below the limit"),
    pytest.param(power_cap(), id="the power limit"),
    pytest.param(hardware_slowdown(), id="the brake"),
    pytest.param(clocks_stuck(), id="no reason"),
    pytest.param(hot_amd(margin_c=30), id="AMD, slow and cool"),
    pytest.param(with_readings(hot_mac(), temperature_c=60), id="a Mac that is cool"),
]
PRESENT = [
    pytest.param(
        with_readings(gpu_case(), reasons=0x24, throttled_sw_thermal_ns=counting(0.9)),
        id="the bit and the counter, but clocks and rate as ever",
    ),
    pytest.param(with_readings(firing(), sm_clock_mhz=1890), id="hot, slow, but not by its clocks"),
    pytest.param(with_phases(firing(), decode_to_at_s=1001.5), id="too short a look"),
]
FIRING = [
    pytest.param(firing(), 3.50, "was too hot (93 C) and slowed down in 98 %", id="counters"),
    pytest.param(firing(), 3.50, "sudo nvidia-smi -i 0 -pl 298", id="a limit from the facts"),
    pytest.param(bits_alone(), 3.50, "in 100 % of decode", id="bits at the limit, no counters"),
    pytest.param(sawtooth(), 2.98, ", in 3 bursts: it ran its processors at", id="sawtooth"),
    pytest.param(begins_late(), 4.2, " of decode from token 400 on", id="from a token on"),
    pytest.param(
        with_readings(firing(), reasons=0x20, temperature_c=64, temperature_margin_c=26),
        3.50,
        "The memory of GPU 0 (NVIDIA GeForce RTX 3090) was probably too hot, although the GPU "
        "itself was cool (64 C), so the GPU slowed down in",
        id="GDDR6X under a cool GPU",
    ),
    pytest.param(laptop(firing()), 3.50, "Lift the laptop", id="laptop"),
    pytest.param(hot_amd(margin_c=1), 3.50, "--setpoweroverdrive 298", id="AMD at its limit"),
    pytest.param(hot_mac(), 28.5, "was probably too hot (98 C)", id="Apple: omlx#2689"),
    pytest.param(
        with_card(firing(), name="Tesla P40"), 3.50, "chassis' fans", id="no fan of its own"
    ),
]
MISSING = [
    pytest.param(replace(firing(), gpu=()), "GPU samples during decode", id="no samples"),
    pytest.param(
        with_readings(firing(), sm_clock_mhz=None, memory_clock_mhz=None),
        "clocks of the GPU",
        id="no clocks",
    ),
    pytest.param(
        with_readings(bits_alone(), reasons=None), "reasons for lower clocks", id="no reasons"
    ),
    pytest.param(
        with_card(bits_alone(None), slowdown_temperature_c=None),
        "temperature margin of the GPU",
        id="no margin",
    ),
]


test_quiet = quiet(thermal_throttle, QUIET)
test_present_without_cost = unnamed(thermal_throttle, PRESENT)
test_fires = fires(thermal_throttle, "lost_s said", FIRING, rel=0.05)
test_names_the_missing_fact = lacks(thermal_throttle, MISSING)


def test_independent_evidence_raises_the_confidence() -> None:
    counted, bits = found(thermal_throttle, firing()), found(thermal_throttle, bits_alone())

    assert counted.confidence > bits.confidence
