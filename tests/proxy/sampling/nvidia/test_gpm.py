"""The share of memory bandwidth in use, through nvidia-ml-py and the stand-in; time is data."""

from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import H100, MIG, RTX_4090
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.calls import Device, GpuLost
from slowtok.proxy.sampling.nvidia.gpm import DramBusy


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    return (H100,)


def opened(*defines: str) -> Device:
    pynvml = stand_in.binding(*defines)
    pynvml.nvmlInit()
    return Device(pynvml, 0)


def read(dram: DramBusy, device: Device, clock: Clock, after_s: float) -> Any:
    clock.now_s += after_s
    return dram.read(device).get("dram_busy_ratio", "nothing")


def test_the_first_reading_has_no_share(script: Script, clock: Clock) -> None:
    device = opened()

    assert read(DramBusy(device), device, clock, 0.0) is None


def test_each_reading_spans_the_time_since_the_one_before(script: Script, clock: Clock) -> None:
    device = opened()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)
    for percent in (43.5, 80.0, 0.0, 12.25):
        script.gpu(0, {"GpmDramBusy": percent})
        assert read(dram, device, clock, 1.0) == pytest.approx(percent / 100)


@pytest.mark.parametrize(
    ("after_s", "share"),
    [(0.05, "nothing"), (0.1, "nothing"), (0.13, 0.435), (1.9, 0.435), (2.1, None)],
)
def test_too_short_and_too_long_a_time_have_no_share(
    script: Script, clock: Clock, after_s: float, share: Any
) -> None:
    device = opened()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)

    assert read(dram, device, clock, after_s) == share


def test_a_reading_at_a_requests_edge_does_not_disturb_the_next(
    script: Script, clock: Clock
) -> None:
    device = opened()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)

    assert read(dram, device, clock, 0.04) == "nothing"
    assert read(dram, device, clock, 0.96) == 0.435
    assert read(dram, device, clock, 0.3) == 0.435


def test_a_card_without_monitors_is_asked_once(script: Script, clock: Clock) -> None:
    script.gpu(0, {"GpmQueryDeviceSupport": 0})
    device = opened()
    dram = DramBusy(device)
    assert read(dram, device, clock, 0.0) == "nothing"
    script.gpu(0, {"GpmQueryDeviceSupport": 1})

    assert read(dram, device, clock, 1.0) == "nothing"
    assert device.absent["nvmlGpmQueryDeviceSupport"] == 3
    assert device.errors == {}


def test_an_old_driver_lacks_the_functions(script: Script, clock: Clock) -> None:
    device = opened("OLD_DRIVER")

    assert read(DramBusy(device), device, clock, 0.0) == "nothing"
    assert device.absent["nvmlGpmQueryDeviceSupport"] == 13


def test_a_sample_that_fails_once_costs_one_span(script: Script, clock: Clock) -> None:
    device = opened()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)
    script.gpu(0, {"GpmDramBusy": "!999"})
    assert read(dram, device, clock, 1.0) == "nothing"
    script.gpu(0, {"GpmDramBusy": 20})

    assert [read(dram, device, clock, 1.0) for _ in range(2)] == [None, 0.2]
    assert sum(device.errors.values()) == 1


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_is_no_number_is_unknown(script: Script, clock: Clock, value: str) -> None:
    device = opened()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)
    script.gpu(0, {"GpmDramBusy": value})

    assert read(dram, device, clock, 1.0) is None


def test_a_gpu_may_be_lost_here_too(script: Script, clock: Clock) -> None:
    device = opened()
    dram = DramBusy(device)
    script.gpu(0, {"GpmDramBusy": "!15"})

    with pytest.raises(GpuLost):
        read(dram, device, clock, 0.0)


def test_buffers_are_given_back(script: Script, clock: Clock) -> None:
    device = opened()
    live = device.nvml.nvmlLib.stand_in_live_samples
    before = live()
    dram = DramBusy(device)
    read(dram, device, clock, 0.0)
    read(dram, device, clock, 1.0)
    assert live() == before + 2
    dram.close(device)

    assert live() == before
    assert read(dram, device, clock, 1.0) is None  # it may begin again


def test_a_slice_is_read_by_its_gpu_and_its_number(script: Script, clock: Clock) -> None:
    script.gpu(0, MIG)
    gpu = opened()
    part = Device(gpu.nvml, 1, gpu.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, 2))
    dram = DramBusy(part, parent=gpu)
    read(dram, part, clock, 0.0)

    assert read(dram, part, clock, 1.0) == 0.05


def test_a_slice_without_a_number_has_no_share(script: Script, clock: Clock) -> None:
    script.gpu(0, MIG | {"mig2.GpuInstanceId": None})
    gpu = opened()
    part = Device(gpu.nvml, 1, gpu.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, 2))

    assert read(DramBusy(part, parent=gpu), part, clock, 0.0) == "nothing"
    assert part.absent["nvmlGpmQueryDeviceSupport"] == 3
    assert gpu.absent == {}


def test_desktop_cards_have_none(script: Script, clock: Clock) -> None:
    script.gpu(0, dict.fromkeys(H100) | RTX_4090)
    device = opened()

    assert read(DramBusy(device), device, clock, 0.0) == "nothing"
