"""Counters of a GPU, through nvidia-ml-py and the stand-in library; time is data."""

from typing import Any

import pytest

from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.calls import Device, GpuLost
from slowtok.proxy.sampling.nvidia.counters import (
    PcieTraffic,
    make_read_throttled,
    read_energy,
    slowdown_ids,
)

TX, RX = "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"
UNKNOWN = {TX: None, RX: None}
NEW, OLD = (269, 270, 271), (251, 252, 253)


class Wire:
    """A PCIe link whose counters the test moves along with the clock."""

    def __init__(self, device: Device, script: Script, clock: Clock, traffic: PcieTraffic) -> None:
        self.device, self.script, self.clock, self.traffic = device, script, clock, traffic

    def read(self, after_s: float, tx: Any, rx: Any) -> dict[str, Any]:
        self.move(after_s, tx, rx)
        return self.traffic.read(self.device)

    def look(self, after_s: float, tx: Any, rx: Any) -> None:
        self.move(after_s, tx, rx)
        self.traffic.look(self.device)

    def move(self, after_s: float, tx: Any, rx: Any) -> None:
        self.clock.now_s += after_s
        self.script.gpu(0, {"Field197": tx, "Field198": rx})


@pytest.fixture
def wire(device: Device, script: Script, clock: Clock) -> Wire:
    return Wire(device, script, clock, PcieTraffic(4, 16))


def test_the_first_reading_has_no_rate(wire: Wire) -> None:
    assert wire.read(0.0, 5_000_000, 7_000_000) == UNKNOWN


def test_rates_are_bytes_over_seconds_each_way(wire: Wire) -> None:
    wire.read(0.0, 5_000_000, 7_000_000)
    rates = wire.read(0.1, 5_300_000, 2_007_000_000)

    assert rates[TX] == pytest.approx(3e6)
    assert rates[RX] == pytest.approx(20e9)


def test_no_traffic_is_zero_which_is_known(wire: Wire) -> None:
    wire.read(0.0, 5, 5)

    assert wire.read(0.1, 5, 5) == {TX: 0.0, RX: 0.0}


def test_a_counter_may_wrap_once(wire: Wire) -> None:
    wire.read(0.0, 0, (1 << 32) - 1000)
    rates = wire.read(0.1, 0, 2_000_000_000 - 1000)

    assert rates[RX] == pytest.approx(20e9)


def test_a_rate_is_unknown_when_the_counter_may_have_wrapped_twice(wire: Wire) -> None:
    wire.read(0.0, 0, 0)  # generation 4, 16 lanes: 31.5 GB/s fill 32 bits in 0.136 s

    assert wire.read(0.14, 1000, 1000) == UNKNOWN
    assert wire.read(0.13, 2300, 2300)[RX] == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("generation", "width", "elapsed_s", "known"),
    [(3, 4, 1.0, True), (3, 16, 0.2, True), (5, 16, 0.1, False), (5, 16, 0.06, True)],
)
def test_how_long_is_too_long_depends_on_the_link(
    wire: Wire, generation: int, width: int, elapsed_s: float, known: bool
) -> None:
    wire.traffic = PcieTraffic(generation, width)
    wire.read(0.0, 0, 0)

    assert (wire.read(elapsed_s, 10, 10)[RX] is not None) is known


@pytest.mark.parametrize(("generation", "width"), [(None, 16), (4, None), (7, 16)])
def test_a_link_of_unknown_speed_has_no_rate(
    wire: Wire, generation: int | None, width: int | None
) -> None:
    wire.traffic = PcieTraffic(generation, width)
    wire.read(0.0, 0, 0)

    assert wire.read(0.1, 10, 10) == {}


def test_looks_in_between_make_a_fast_link_certain(wire: Wire) -> None:
    wire.traffic = PcieTraffic(5, 16)
    wire.read(0.0, 0, 0)
    for tick in range(1, 5):
        wire.look(0.05, 0, tick * 3_000_000_000 - 1_500_000_000)
        assert wire.read(0.05, 0, tick * 3_000_000_000)[RX] == pytest.approx(30e9)


def test_one_look_that_comes_too_late_spoils_one_reading(wire: Wire) -> None:
    wire.traffic = PcieTraffic(5, 16)
    wire.read(0.0, 0, 0)
    wire.look(0.07, 0, 0)
    assert wire.read(0.03, 0, 0) == UNKNOWN
    wire.look(0.05, 0, 0)

    assert wire.read(0.05, 0, 1000)[RX] == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("generation", "width", "needed"),
    [
        (3, 16, False),
        (4, 16, False),
        (5, 8, False),
        (5, 16, True),
        (6, 16, False),
        (None, 4, False),
    ],
)
def test_only_a_link_that_wraps_between_samples_needs_looks(
    generation: int | None, width: int, needed: bool
) -> None:
    assert PcieTraffic(generation, width).needs_look() is needed


def test_readings_in_quick_succession_wait_for_a_span_worth_it(wire: Wire) -> None:
    wire.read(0.0, 0, 0)

    assert wire.read(0.001, 1000, 1000) == {}
    assert wire.read(0.049, 5000, 5000)[RX] == pytest.approx(100_000)


@pytest.mark.parametrize("error", [None, "!2", "!4", "!13"])
def test_counters_that_are_not_there_are_unknown_and_asked_once(
    wire: Wire, error: str | None
) -> None:
    for _ in range(2):
        assert wire.read(0.1, error, error) == UNKNOWN
    assert wire.read(0.1, 10, 10) == UNKNOWN
    assert wire.device.errors == {}


def test_one_counter_may_be_there_without_the_other(wire: Wire) -> None:
    wire.read(0.0, None, 0)

    assert wire.read(0.1, None, 100) == {TX: None, RX: pytest.approx(1000)}


def test_a_field_says_that_the_gpu_is_lost(wire: Wire) -> None:
    with pytest.raises(GpuLost, match="GPU is lost"):
        wire.read(0.0, "!15", "!15")


@pytest.mark.parametrize(
    ("driver", "ids"),
    [
        ("535.183.01", OLD),
        ("575.57.08", OLD),
        ("580.65.06", OLD),
        ("580.76.05", ()),  # between the two sets
        ("580.82.07", NEW),
        ("580.95.05", NEW),
        ("610.57.04", NEW),
        ("unheard of", ()),
        (None, ()),
    ],
)
def test_ids_of_slowdown_times_are_those_of_the_driver(
    driver: str | None, ids: tuple[int, ...]
) -> None:
    assert slowdown_ids(driver) == ids


def test_throttled_times_of_a_new_driver(device: Device) -> None:
    assert make_read_throttled("580.95.05")(device) == {
        "throttled_power_ns": 7_000_000_000,
        "throttled_sw_thermal_ns": 3_000_000,
        "throttled_hw_thermal_ns": 2_000_000,
        "throttled_power_brake_ns": 1_000_000,
    }


def test_throttled_times_of_an_old_driver_have_other_ids(device: Device, script: Script) -> None:
    script.gpu(0, {"Field251": 11, "Field252": 12, "Field253": 13, "Field269": 99})
    found = make_read_throttled("570.124.06")(device)

    assert found["throttled_sw_thermal_ns"] == 11
    assert found["throttled_hw_thermal_ns"] == 12
    assert found["throttled_power_brake_ns"] == 13


def test_a_driver_that_may_have_either_set_is_asked_for_neither(device: Device) -> None:
    assert make_read_throttled("580.76.05")(device) == {
        "throttled_power_ns": 7_000_000_000,
    }


@pytest.mark.parametrize("error", [None, "!2", "!999"])
def test_a_throttled_time_that_is_not_there_is_missing_alone(
    device: Device, script: Script, error: str | None
) -> None:
    script.gpu(0, {"Field270": error})
    found = make_read_throttled("580.95.05")(device)

    assert "throttled_hw_thermal_ns" not in found
    assert len(found) == 3


def test_throttled_times_have_64_bits(device: Device, script: Script) -> None:
    script.gpu(0, {"Field74": (1 << 40) + 5})

    assert make_read_throttled(None)(device)["throttled_power_ns"] == (1 << 40) + 5


def test_energy_is_in_joules(device: Device) -> None:
    assert read_energy(device) == {"energy_j": 5000.25}


def test_energy_that_is_not_there_is_unknown(device: Device, script: Script) -> None:
    script.gpu(0, {"TotalEnergyConsumption": None})

    assert read_energy(device) == {"energy_j": None}
