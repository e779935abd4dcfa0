"""GPU facts that failed are asked again, and limits that software moves are followed."""

from typing import Any

from fakes.nvml import stand_in
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices


def devices() -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(), process_name=lambda _: None)


def sample(gpus: NvidiaDevices, *, slow_tier: bool) -> dict[str, Any]:
    (line,) = gpus.sample(slow_tier=slow_tier, servers=set())
    return line


def test_facts_that_failed_once_are_asked_again(script: Script, clock: Clock) -> None:
    script.gpu(0, {"MemoryBusWidth": "!999", "MaxClockInfo.1": None})
    gpus = devices()
    sample(gpus, slow_tier=True)
    (at_first,) = gpus.facts or []
    script.gpu(0, {"MemoryBusWidth": 384, "MaxClockInfo.1": 3105})
    clock.now_s += 14.0
    sample(gpus, slow_tier=True)
    (too_soon,) = gpus.facts or []
    clock.now_s += 2.0
    sample(gpus, slow_tier=True)
    sample(gpus, slow_tier=True)  # what one sample has found out is told with the next
    (again,) = gpus.facts or []

    assert (at_first["bus_width_bits"], at_first["bandwidth_bytes_per_s"]) == (None, None)
    assert too_soon["bus_width_bits"] is None
    assert (again["bus_width_bits"], again["bandwidth_bytes_per_s"]) == (384, 2 * 10501e6 * 48)
    assert again["max_sm_clock_mhz"] is None  # not supported is no failure


def test_an_unknown_error_that_came_too_often_is_tried_again(script: Script, clock: Clock) -> None:
    script.gpu(0, {"MemoryBusWidth": "!999"})
    gpus = devices()
    for _ in range(9):
        clock.now_s += 16.0
        sample(gpus, slow_tier=True)
    script.gpu(0, {"MemoryBusWidth": 384})
    clock.now_s += 16.0
    sample(gpus, slow_tier=True)
    sample(gpus, slow_tier=True)
    (facts,) = gpus.facts or []

    assert facts["bus_width_bits"] == 384


def test_power_limits_that_software_moves_are_followed(script: Script, clock: Clock) -> None:
    gpus = devices()
    sample(gpus, slow_tier=True)
    (before,) = gpus.facts or []
    script.gpu(0, {"PowerManagementDefaultLimit": 280_000})
    clock.now_s += 16.0
    sample(gpus, slow_tier=True)
    sample(gpus, slow_tier=True)
    (after,) = gpus.facts or []
    clock.now_s += 16.0
    sample(gpus, slow_tier=True)

    assert (before["default_power_limit_w"], after["default_power_limit_w"]) == (450.0, 280.0)
    assert gpus.facts == [after]
