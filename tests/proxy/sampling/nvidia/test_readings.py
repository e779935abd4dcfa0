"""Health of a GPU, through nvidia-ml-py and the stand-in library; time is data."""

from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import H100
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.proxy.sampling.nvidia.calls import Device, GpuLost
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices
from slowtok.proxy.sampling.nvidia.readings import Health, read_licensed

HEALTH = {
    "memory_temperature_c": 71,
    "power_source": "ac",
    "ecc_errors": 3,
    "remapped_rows": 3,
    "pcie_replays": 17,
}
CALLS = {
    "Field82": "memory_temperature_c",
    "PowerSource": "power_source",
    "TotalEccErrors.1.1": "ecc_errors",
    "RemappedRows": "remapped_rows",
    "PcieReplayCounter": "pcie_replays",
}


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    return (H100 | {"Xids": None},)


def test_every_value_and_unit(device: Device) -> None:
    assert Health(is_virtual=False).read(device) == HEALTH


@pytest.mark.parametrize(
    ("code", "source"), [(0, "ac"), (1, "battery"), (2, "undersized"), (7, None)]
)
def test_power_sources_have_names(
    device: Device, script: Script, code: int, source: str | None
) -> None:
    script.gpu(0, {"PowerSource": code})

    assert Health(is_virtual=False).read(device)["power_source"] == source


@pytest.mark.parametrize(("call", "field"), CALLS.items(), ids=CALLS)
@pytest.mark.parametrize("error", [None, "!3", "!4", "!6", "!13", "!999"])
def test_what_one_call_does_not_say_is_missing_alone(
    device: Device, script: Script, call: str, field: str, error: str | None
) -> None:
    script.gpu(0, {call: error})

    assert Health(is_virtual=False).read(device) == HEALTH | {field: None}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", ["!15", "!16", "!18", "!28"])
def test_a_gpu_may_be_lost_here_too(device: Device, script: Script, call: str, error: str) -> None:
    script.gpu(0, {call: error})

    with pytest.raises(GpuLost):
        Health(is_virtual=False).read(device)


def test_it_is_asked_seldom_and_told_always(script: Script, clock: Clock) -> None:
    gpus = NvidiaDevices(stand_in.binding(), lambda _: None)

    def slow_tier() -> dict[str, Any]:
        (line,) = gpus.sample(slow_tier=True, servers=set())
        return line

    assert slow_tier().items() >= HEALTH.items()
    script.gpu(0, {"TotalEccErrors.1.1": 4})
    clock.now_s += 14.0
    assert slow_tier()["ecc_errors"] == 3
    clock.now_s += 1.5
    assert slow_tier()["ecc_errors"] == 4
    (fast,) = gpus.sample(slow_tier=False, servers=set())
    assert not fast.keys() & HEALTH.keys()


@pytest.mark.parametrize(
    ("features", "licensed"),
    [("1 1", True), ("1 0", False), ("1 0 1", True), ("0", None), ("1", None), (None, None)],
)
def test_a_vgpu_is_licensed_if_any_feature_is(
    device: Device, script: Script, features: str | None, licensed: bool | None
) -> None:
    script.gpu(0, {"GridLicensableFeatures": features})

    assert read_licensed(device) is licensed
    assert ("nvmlDeviceGetGridLicensableFeatures" in device.absent) is (licensed is None)


@pytest.mark.parametrize("is_virtual", [False, None])
def test_only_a_vgpu_is_asked_for_its_licence(
    device: Device, script: Script, is_virtual: bool | None
) -> None:
    script.gpu(0, {"GridLicensableFeatures": "1 0"})

    assert "vgpu_licensed" not in Health(is_virtual=is_virtual).read(device)
    assert Health(is_virtual=True).read(device)["vgpu_licensed"] is False
