"""Every field of a sample is given or absent with a reason, through nvidia-ml-py; time is data."""

from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import H100, RTX_4090
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices

FIELDS = set(GpuSample.__slots__) - {"at_s", "index"}
ALWAYS = {"vgpu_licensed"}  # unless it is a vGPU
UNSUPPORTED = "not supported by this GPU or driver"
NO_PERMISSION = "no permission: run as root"
QUIET_H100 = H100 | {"Xids": None}  # without the thread that listens
NO_EVENTS = {"xid", "xids"}
CALLS = {
    "UtilizationRates": {"busy_ratio", "memory_busy_ratio"},
    "ClockInfo.1": {"sm_clock_mhz"},
    "ClockInfo.2": {"memory_clock_mhz"},
    "PerformanceState": {"pstate"},
    "MarginTemperature": {"temperature_margin_c"},
    "MemoryInfo_v2": {"reserved_bytes"},
    "EnforcedPowerLimit": {"power_limit_w"},
    "CurrPcieLinkGeneration": {"pcie_generation"},
    "CurrPcieLinkWidth": {"pcie_width"},
    "TotalEnergyConsumption": {"energy_j"},
    "Field74": {"throttled_power_ns"},
    "Field82": {"memory_temperature_c"},
    "Field197": {"pcie_tx_bytes_per_s"},
    "Field198": {"pcie_rx_bytes_per_s"},
    "Field269": {"throttled_sw_thermal_ns"},
    "Field270": {"throttled_hw_thermal_ns"},
    "Field271": {"throttled_power_brake_ns"},
    "PowerSource": {"power_source"},
    "TotalEccErrors.1.1": {"ecc_errors"},
    "RemappedRows": {"remapped_rows"},
    "PcieReplayCounter": {"pcie_replays"},
    "GpmDramBusy": {"dram_busy_ratio"},
    "GpmQueryDeviceSupport": {"dram_busy_ratio"},
}
PAIRS = {
    ("Field186", "PowerUsage"): {"power_w"},
    ("TemperatureV.0", "Temperature.0"): {"temperature_c"},
    ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons"): {"reasons"},
    ("ComputeRunningProcesses", "GraphicsRunningProcesses"): {"processes"},
}


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    return (QUIET_H100,)


def look(clock: Clock, gpus: NvidiaDevices) -> tuple[set[str], dict[str, str]]:
    """Return the fields that have a value once all had the time for one, and those absent."""
    for _ in range(4):
        gpus.sample(slow_tier=True, servers=set())
        clock.now_s += 15.1
    for _ in range(3):
        (line,) = gpus.sample(slow_tier=True, servers=set())
        clock.now_s += 0.13
    assert gpus.facts is not None
    return {name for name in FIELDS if line.get(name) is not None}, gpus.facts[0]["absent"]


def devices(*defines: str, **options: Any) -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(*defines), lambda _: None, **options)


def test_what_a_whole_gpu_says(script: Script, clock: Clock) -> None:
    given, absent = look(clock, devices())

    assert given == FIELDS - ALWAYS - NO_EVENTS
    assert absent == {
        "vgpu_licensed": "not a vGPU: needs no licence",
        "xid": UNSUPPORTED,
        "xids": UNSUPPORTED,
    }


def test_what_a_desktop_card_lacks(script: Script, clock: Clock) -> None:
    script.gpu(0, dict.fromkeys(H100) | RTX_4090)
    given, absent = look(clock, devices())

    lacking = {"memory_temperature_c", "power_source", "ecc_errors", "remapped_rows"}
    assert absent.keys() == lacking | {"dram_busy_ratio"} | ALWAYS | NO_EVENTS
    assert given == FIELDS - absent.keys()


@pytest.mark.parametrize("calls", [*((call,) for call in CALLS), *PAIRS], ids=" ".join)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, UNSUPPORTED),
        ("!4", NO_PERMISSION),
        ("!13", "not known to this version of the driver or of nvidia-ml-py"),
        ("!999", "the driver answers with an unknown error"),
    ],
)
def test_what_never_answers_is_absent_and_nothing_else(
    script: Script, clock: Clock, calls: tuple[str, ...], error: str | None, reason: str
) -> None:
    script.gpu(0, dict.fromkeys(calls, error))
    given, absent = look(clock, devices())

    fields = PAIRS[calls] if calls in PAIRS else CALLS[calls[0]]
    assert absent.keys() == fields | ALWAYS | NO_EVENTS
    assert given == FIELDS - absent.keys()
    assert {absent[field] for field in fields} == {reason}


@pytest.mark.parametrize("error", ["!6", "!21"])
def test_nothing_new_is_not_absent(script: Script, clock: Clock, error: str) -> None:
    script.gpu(0, {"ComputeRunningProcesses": error, "GraphicsRunningProcesses": error})
    given, absent = look(clock, devices())

    assert "processes" not in given
    assert "processes" not in absent


def test_a_gpu_that_says_nothing_has_a_reason_for_every_field(script: Script, clock: Clock) -> None:
    script.gpu(0, dict.fromkeys(H100) | {"UUID": "GPU-0", "MemoryInfo": "!4"})
    given, absent = look(clock, devices())

    assert given == set()
    assert absent.keys() == FIELDS
    assert all(absent.values())


def test_unified_memory_has_no_size_and_no_link(script: Script, clock: Clock) -> None:
    script.gpu(0, {"MemoryInfo": None, "MemoryInfo_v2": None})
    given, absent = look(clock, devices())

    assert given == FIELDS - absent.keys()
    assert absent["free_bytes"] == absent["total_bytes"] == absent["reserved_bytes"]
    assert absent["free_bytes"] == ("the GPU shares the machine's memory: its driver gives no size")
    assert absent["pcie_width"] == absent["pcie_rx_bytes_per_s"]
    assert absent["pcie_width"] == "the GPU is part of the chip: it has no PCIe link"


def test_a_vgpu_guest_says_so(script: Script, clock: Clock) -> None:
    script.gpu(0, {"VirtualizationMode": 2, "GridLicensableFeatures": "1 0 1"})
    script.gpu(0, {"Field197": None, "PowerUsage": "!4", "Field186": None})
    given, absent = look(clock, devices())

    assert "vgpu_licensed" in given
    assert absent["pcie_tx_bytes_per_s"] == "not available on vGPU guests"
    assert absent["power_w"] == NO_PERMISSION


def test_a_driver_between_two_sets_of_ids(script: Script, clock: Clock) -> None:
    script.set(DriverVersion="580.76.05")
    given, absent = look(clock, devices())

    slowdowns = {name for name, why in absent.items() if why.endswith("update the driver")}
    assert len(slowdowns) == 3
    assert "throttled_power_ns" in given


@pytest.mark.parametrize(
    ("generation", "reason"),
    [
        (6, "its PCIe counters wrap faster than they can be read"),
        (None, "the speed of its PCIe link is not known, so neither is when its counters wrap"),
    ],
)
def test_traffic_that_cannot_be_told(
    script: Script, clock: Clock, generation: int | None, reason: str
) -> None:
    script.gpu(0, {"MaxPcieLinkGeneration": generation})
    given, absent = look(clock, devices())

    assert absent["pcie_rx_bytes_per_s"] == absent["pcie_tx_bytes_per_s"] == reason
    assert not given & {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}


def test_traffic_that_is_too_dear_to_be_read_in_time(script: Script, clock: Clock) -> None:
    script.gpu(0, {"Field197": "~3 0"})
    _, absent = look(clock, devices())

    assert absent["pcie_rx_bytes_per_s"] == "its PCIe counters wrap faster than they can be read"


def test_under_wsl_processes_are_not_asked_for(script: Script, clock: Clock) -> None:
    script.gpu(0, {"ComputeRunningProcesses": "none", "GraphicsRunningProcesses": "none"})
    gpus = devices(is_wsl=True)
    given, absent = look(clock, gpus)

    assert "processes" not in given
    assert absent["processes"].startswith("not available under WSL2")
    assert gpus.sample_idle(servers=set())[0]["processes"] is None


def test_what_is_lost_later_is_told_anew_and_what_was_told_stays(script: Script) -> None:
    gpus = devices()
    gpus.sample(slow_tier=True, servers=set())
    before = gpus.facts
    script.gpu(0, {"EnforcedPowerLimit": "!4"})
    gpus.sample(slow_tier=True, servers=set())

    assert before is not None
    assert gpus.facts is not None
    assert "power_limit_w" not in before[0]["absent"]
    assert gpus.facts[0]["absent"]["power_limit_w"] == NO_PERMISSION
    assert GpuFacts(**gpus.facts[0]).absent == gpus.facts[0]["absent"]


def test_all_is_known_with_the_first_sample(script: Script, clock: Clock) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set())
    first = gpus.facts
    look(clock, gpus)

    assert first == gpus.facts
