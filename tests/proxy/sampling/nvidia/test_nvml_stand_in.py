"""The stand-in itself: it must be to nvidia-ml-py what a driver is."""

import ctypes
import time
from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import RTX_4090
from fakes.nvml.stand_in import Script

FUNCTION_NOT_FOUND = 13
STRUCTS = (
    "c_nvmlUtilization_t",
    "c_nvmlMemory_t",
    "c_nvmlMemory_v2_t",
    "c_nvmlTemperature_v1_t",
    "c_nvmlMarginTemperature_v1_t",
    "c_nvmlProcessInfo_v3_t",
    "c_nvmlProcessUtilizationSample_t",
    "c_nvmlFieldValue_t",
    "nvmlPciInfo_t",
    "c_nvmlGridLicensableFeatures_v4_t",
    "c_nvmlGpmMetric_t",
    "c_nvmlGpmMetricsGet_t",
    "c_nvmlGpmSupport_t",
    "c_nvmlEventData_t",
)


@pytest.mark.parametrize("name", STRUCTS)
def test_layouts_are_those_of_the_binding(name: str) -> None:
    pynvml = stand_in.binding()
    size_of = pynvml.nvmlLib[f"stand_in_size_{name}"]
    size_of.restype = ctypes.c_ulong

    assert size_of() == ctypes.sizeof(getattr(pynvml, name)) > 0


@pytest.mark.parametrize(
    ("version", "struct"),
    [
        ("nvmlMemory_v2", "c_nvmlMemory_v2_t"),
        ("nvmlTemperature_v1", "c_nvmlTemperature_v1_t"),
        ("nvmlMarginTemperature_v1", "c_nvmlMarginTemperature_v1_t"),
    ],
)
def test_versions_hold_the_size(version: str, struct: str) -> None:
    pynvml = stand_in.binding()

    assert getattr(pynvml, version) & 0xFFFFFF == ctypes.sizeof(getattr(pynvml, struct))


def test_nothing_answers_before_it_is_initialised(script: Script) -> None:
    pynvml = stand_in.binding()
    while not _raises(pynvml, pynvml.nvmlShutdown):  # what earlier tests left initialised
        pass

    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def _raises(pynvml: Any, call: Any) -> bool:
    try:
        call()
    except pynvml.NVMLError:
        return True
    return False


def test_a_missing_symbol_is_a_function_not_found(script: Script) -> None:
    pynvml = stand_in.binding("OLD_DRIVER")
    pynvml.nvmlInit()

    with pytest.raises(pynvml.NVMLError_FunctionNotFound) as caught:
        pynvml.nvmlDeviceGetTemperatureV(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    assert caught.value.value == FUNCTION_NOT_FOUND


def test_errors_gaps_and_time_steps(script: Script) -> None:
    pynvml = stand_in.binding()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    script.gpu(0, {"PowerUsage": "!999", "EnforcedPowerLimit": None})

    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    script.at(0.0, "gpu0.PowerUsage", 123)
    script.at(60.0, "gpu0.PowerUsage", 456)
    time.sleep(0.002)  # the script has milliseconds
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 123


def test_a_call_blocks_as_long_as_it_is_told_to(script: Script) -> None:
    pynvml = stand_in.binding()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    script.gpu(0, {"PowerUsage": "~40 123"})

    begun_s = time.monotonic()
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 123
    assert time.monotonic() - begun_s >= 0.04


def test_a_lost_gpu_answers_nothing_and_comes_back(script: Script) -> None:
    pynvml = stand_in.binding()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    script.set(gpu0="!15")

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetName(handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)
    script.set(gpu0=None)
    assert pynvml.nvmlDeviceGetName(handle) == RTX_4090["Name"]
