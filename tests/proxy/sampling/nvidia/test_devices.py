"""Tiers, units and absence, through nvidia-ml-py and the stand-in library; time is data."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import MIB
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.detectors.case.machine import GpuFacts
from slowtok.proxy.sampling.nvidia import calls as nvml_calls
from slowtok.proxy.sampling.nvidia.counters import LOOK_S
from slowtok.proxy.sampling.nvidia.devices import KERNEL_FOLDER, NvidiaDevices, listed_gpus
from slowtok.proxy.sampling.schedule import Extras

NAMES = {7: "llama-server", 8: "Xorg"}

INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t 124
GPU UUID: \t {uuid}
Video BIOS: \t 94.02.42.00.b4
Bus Type: \t PCIe
Bus Location: \t {address}
Device Minor: \t 0
"""


def devices(*defines: str) -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(*defines), process_name=NAMES.get)


def sample(gpus: NvidiaDevices, *, slow_tier: bool = False) -> dict[str, Any]:
    (line,) = gpus.sample(slow_tier=slow_tier, servers={7})
    return line


FAST = {
    "busy_ratio": 0.97,
    "memory_busy_ratio": 0.61,
    "power_w": 310.5,
    "sm_clock_mhz": 2520,
    "memory_clock_mhz": 10251,
    "pstate": 2,
    "reasons": 0x4,
    "temperature_c": 64,
    "temperature_margin_c": 19,
    "free_bytes": 1000 * MIB,
    "total_bytes": 24564 * MIB,
    "reserved_bytes": 460 * MIB,
}
SLOW_TIER = {
    "power_limit_w": 400.0,
    "pcie_generation": 4,
    "pcie_width": 8,
    "energy_j": 5000.25,
    "throttled_power_ns": 7_000_000_000,
    "throttled_sw_thermal_ns": 3_000_000,
    "throttled_hw_thermal_ns": 2_000_000,
    "throttled_power_brake_ns": 1_000_000,
    "pcie_replays": 17,
}
CALLS = {
    "UtilizationRates": {"busy_ratio", "memory_busy_ratio"},
    "ClockInfo.1": {"sm_clock_mhz"},
    "ClockInfo.2": {"memory_clock_mhz"},
    "PerformanceState": {"pstate"},
    "MarginTemperature": {"temperature_margin_c"},
    "EnforcedPowerLimit": {"power_limit_w"},
    "CurrPcieLinkGeneration": {"pcie_generation"},
    "CurrPcieLinkWidth": {"pcie_width"},
    "TotalEnergyConsumption": {"energy_j"},
    "MemoryInfo_v2": {"reserved_bytes"},
    "PcieReplayCounter": {"pcie_replays"},
    "Field74": {"throttled_power_ns"},
    "Field269": {"throttled_sw_thermal_ns"},
    "Field270": {"throttled_hw_thermal_ns"},
    "Field271": {"throttled_power_brake_ns"},
}


def test_every_value_and_unit(script: Script) -> None:
    line = sample(devices(), slow_tier=True)

    assert {name: line[name] for name in FAST | SLOW_TIER} == FAST | SLOW_TIER


@pytest.mark.parametrize("error", ["!13", "!4", "!999"])
def test_a_driver_that_reads_no_fields(script: Script, error: str) -> None:
    script.gpu(0, {"FieldValues": error})
    line = sample(devices(), slow_tier=True)

    lacking = {name for name in FAST | SLOW_TIER if line.get(name) is None}
    assert lacking == {name for name in SLOW_TIER if name.startswith("throttled")}
    assert line["power_w"] == 300.0


def test_processes_are_named_once_with_memory_and_share(script: Script) -> None:
    assert sample(devices(), slow_tier=True)["processes"] == [
        {
            "pid": 7,
            "memory_bytes": 120 * MIB,
            "name": "llama-server",
            "is_server": True,
            "busy_ratio": 0.88,
            "memory_busy_ratio": 0.4,
        },
        {"pid": 8, "memory_bytes": None, "name": "Xorg", "is_server": False},
        {
            "pid": 9,
            "memory_bytes": 5 * MIB,
            "name": None,
            "is_server": False,
            "busy_ratio": 0.03,
            "memory_busy_ratio": 0.01,
        },
    ]


def test_in_a_container_no_process_is_matched_or_named(script: Script) -> None:
    (line,) = devices().sample(slow_tier=True, servers=None)

    assert [(p["pid"], p["name"], p["is_server"]) for p in line["processes"]] == [
        (7, None, None),
        (8, None, None),
        (9, None, None),
    ]
    assert line["processes"][0]["memory_bytes"] == 120 * MIB


@pytest.mark.parametrize(
    "samples",
    ["7:101:3:100", "7:50:3:5000", "7:3:4294967295:10", "none", "!6", "!3", None],
    ids=["over 100 %", "stale", "garbage", "none", "nothing new", "in MIG mode", "unsupported"],
)
def test_a_share_that_cannot_be_is_left_out(script: Script, samples: str | None) -> None:
    script.gpu(0, {"ProcessUtilization": samples})
    gpus = devices()

    assert "busy_ratio" not in sample(gpus, slow_tier=True)["processes"][0]
    assert gpus.counts()["gpu_errors"] == 0


def test_the_newest_share_counts(script: Script) -> None:
    script.gpu(0, {"ProcessUtilization": "7:20:1:50 7:90:1:500 7:10:1:300"})

    assert sample(devices(), slow_tier=True)["processes"][0]["busy_ratio"] == 0.2


@pytest.mark.parametrize("error", [None, "!13", "!4", "!6"])
def test_processes_that_are_not_shown_are_unknown(script: Script, error: str | None) -> None:
    script.gpu(0, {"ComputeRunningProcesses": error, "GraphicsRunningProcesses": error})

    assert sample(devices(), slow_tier=True)["processes"] is None


def test_no_processes_is_known(script: Script) -> None:
    script.gpu(0, {"ComputeRunningProcesses": "none", "GraphicsRunningProcesses": "none"})

    assert sample(devices(), slow_tier=True)["processes"] == []


def test_cheap_samples_have_the_fast_tier_and_the_last_levels(script: Script) -> None:
    gpus = devices()
    sample(gpus, slow_tier=True)
    line = sample(gpus)

    assert FAST.items() <= line.items()
    assert set(line) & set(SLOW_TIER) == {"power_limit_w"}
    assert "processes" not in line


def test_idle_looks_at_memory_and_processes_alone(script: Script) -> None:
    gpus = devices()
    sample(gpus, slow_tier=True)
    (line,) = gpus.sample_idle(servers=set())

    memory = {"free_bytes", "total_bytes", "reserved_bytes"}
    assert set(line) == {"kind", "at_s", "index", "processes"} | memory
    assert not any(
        "busy_ratio" in process for process in line["processes"]
    )  # that call is expensive


def test_pcie_rates_come_with_the_second_sample(script: Script, clock: Clock) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set())
    clock.now_s += 0.1
    script.gpu(0, {"Field197": 1_500_000, "Field198": 1_002_000_000})
    line = sample(gpus)

    assert line["pcie_tx_bytes_per_s"] == pytest.approx(5e6)
    assert line["pcie_rx_bytes_per_s"] == pytest.approx(10e9)


def test_a_burst_of_traffic_is_told_once_with_the_next_sample(script: Script, clock: Clock) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set(), extras=Extras(traffic="burst"))
    assert gpus.look_s() == LOOK_S
    clock.now_s += LOOK_S
    script.gpu(0, {"Field197": 1_500_000, "Field198": 502_000_000})
    gpus.look()
    assert gpus.look_s() is None
    clock.now_s += 0.35  # much longer than the counters may wrap in
    script.gpu(0, {"Field197": 7, "Field198": 8})
    first, second = (
        gpus.sample(slow_tier=False, servers=set(), extras=Extras(traffic=None))[0]
        for _ in range(2)
    )

    assert first["pcie_tx_bytes_per_s"] == pytest.approx(10e6)
    assert first["pcie_rx_bytes_per_s"] == pytest.approx(10e9)
    assert "pcie_rx_bytes_per_s" not in second


def test_a_burst_that_was_not_looked_at_yet_tells_nothing(script: Script, clock: Clock) -> None:
    gpus = devices()
    gpus.sample(slow_tier=False, servers=set(), extras=Extras(traffic="burst"))
    clock.now_s += 0.01
    (line,) = gpus.sample(slow_tier=True, servers=set(), extras=Extras(traffic=None))

    assert line.get("pcie_rx_bytes_per_s") is None


def test_what_is_not_due_is_not_asked(script: Script) -> None:
    gpus = devices()
    nothing = Extras(energy=False, lists=False, shares=False, traffic=None)
    (line,) = gpus.sample(slow_tier=True, servers={7}, extras=nothing)
    (listed,) = gpus.sample(slow_tier=True, servers={7}, extras=nothing._replace(lists=True))

    assert not {"energy_j", "processes", "pcie_rx_bytes_per_s"} & set(line)
    assert line["throttled_power_ns"] == 7_000_000_000
    assert not any("busy_ratio" in process for process in listed["processes"])


def test_unified_memory_has_no_link_and_no_traffic(script: Script, clock: Clock) -> None:
    script.gpu(0, {"MemoryInfo": None, "MemoryInfo_v2": None, "CurrPcieLinkGeneration": 1})
    gpus = devices()
    sample(gpus)
    clock.now_s += 0.1
    line = sample(gpus, slow_tier=True)

    unknown = ("pcie_generation", "pcie_width", "pcie_rx_bytes_per_s", "total_bytes", "free_bytes")
    assert [line.get(name) for name in unknown] == [None] * 5
    assert line["processes"]


@pytest.mark.parametrize(("call", "fields"), CALLS.items(), ids=CALLS)
@pytest.mark.parametrize("error", [None, "!13", "!4", "!6", "!999"])
def test_what_one_call_does_not_say_is_missing_alone(
    script: Script, call: str, fields: set[str], error: str | None
) -> None:
    script.gpu(0, {call: error, "PowerUsage": 310_500})
    line = sample(devices(), slow_tier=True)

    assert {name for name in FAST | SLOW_TIER if line.get(name) is None} == fields


@pytest.mark.parametrize(
    ("newer", "name", "older"),
    [
        ("Field186", "power_w", 300.0),
        ("CurrentClocksEventReasons", "reasons", 0x20),
        ("TemperatureV.0", "temperature_c", 63),
        ("MemoryInfo_v2", "free_bytes", 1000 * MIB),
    ],
)
def test_an_older_call_answers_for_a_newer_one(
    script: Script, newer: str, name: str, older: float
) -> None:
    script.gpu(0, {newer: None})

    assert sample(devices())[name] == older


def test_an_old_driver_lacks_functions(script: Script) -> None:
    line = sample(devices("OLD_DRIVER"))

    assert (line["reasons"], line["temperature_c"]) == (0x20, 63)
    assert line["temperature_margin_c"] is None


def test_an_old_driver_lists_processes_the_older_way(script: Script) -> None:
    line = sample(devices("OLD_DRIVER"), slow_tier=True)

    assert [process["pid"] for process in line["processes"]] == [7, 8, 9]


def test_an_old_binding_lacks_functions(script: Script) -> None:
    pynvml = stand_in.binding()
    del pynvml.nvmlDeviceGetTemperatureV
    del pynvml.nvmlDeviceGetMarginTemperature
    line = sample(NvidiaDevices(pynvml, NAMES.get))

    assert (line["temperature_c"], line["temperature_margin_c"]) == (63, None)


def test_unsupported_is_asked_only_once(script: Script) -> None:
    script.gpu(0, {"UtilizationRates": None})  # as in MIG mode
    gpus = devices()
    assert "busy_ratio" not in sample(gpus)
    script.gpu(0, {"UtilizationRates": "1 1"})

    assert "busy_ratio" not in sample(gpus)
    assert gpus.counts()["gpu_errors"] == 0


def test_an_unknown_error_is_counted_and_given_up_after_three(script: Script) -> None:
    gpus = devices()
    sample(gpus)
    script.gpu(0, {"ClockInfo.1": "!999"})
    for _ in range(5):
        assert sample(gpus)["sm_clock_mhz"] is None
    assert gpus.counts()["gpu_errors"] == 3

    script.gpu(0, {"ClockInfo.1": 2000})
    assert sample(gpus)["sm_clock_mhz"] is None


@pytest.mark.parametrize(
    ("call", "name"), [("ClockInfo.1", "sm_clock_mhz"), ("Field74", "throttled_power_ns")]
)
def test_unknown_errors_apart_are_forgiven(script: Script, call: str, name: str) -> None:
    gpus = devices()
    sample(gpus)
    for _ in range(4):
        script.gpu(0, {call: "!999"})
        sample(gpus, slow_tier=True)
        script.gpu(0, {call: 2000})
        assert sample(gpus, slow_tier=True)[name] == 2000


def test_a_dear_call_is_left_to_the_slow_tier(script: Script) -> None:
    script.gpu(0, {"PerformanceState": "~3 2"})
    gpus = devices()

    assert "pstate" not in sample(gpus)
    assert sample(gpus)["temperature_c"] == 64
    assert sample(gpus, slow_tier=True)["pstate"] == 2


def test_dear_pcie_counters_are_left_to_the_slow_tier(script: Script, clock: Clock) -> None:
    script.gpu(0, {"Field197": "~3 0", "MaxPcieLinkGeneration": 5})
    gpus = devices()

    assert "pcie_tx_bytes_per_s" not in sample(gpus)
    assert gpus.look_s() is None
    clock.now_s += 1.0
    assert "pcie_tx_bytes_per_s" in sample(gpus, slow_tier=True)


def test_a_call_costs_what_it_costs_at_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 0.5, 1.0, 1.25, 2.0, 2.5])
    monkeypatch.setattr(nvml_calls, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    calls: list[object] = []

    assert nvml_calls.cost_s(calls.append, cast(nvml_calls.Device, "GPU")) == 0.25
    assert len(calls) == 4  # the first one warms the driver up


def test_fast_links_are_looked_at_only_while_active(script: Script) -> None:
    gpus = devices()
    sample(gpus)
    assert gpus.look_s() is None

    script.gpu(0, {"MaxPcieLinkGeneration": 5})
    gpus = devices()
    assert gpus.look_s() is None
    sample(gpus)
    assert gpus.look_s() == 0.05
    gpus.sample_idle(servers=set())
    assert gpus.look_s() is None


def test_a_loss_between_samples_is_found_by_the_next(script: Script) -> None:
    script.gpu(0, {"MaxPcieLinkGeneration": 5})
    gpus = devices()
    sample(gpus)
    script.set(gpu0="!15")
    gpus.look()

    assert gpus.reason is None
    assert gpus.sample(slow_tier=False, servers=set()) == []
    assert gpus.reason == "GPU 0: GPU is lost"


def add(root: Path, address: str, name: str, uuid: str) -> None:
    folder = root / KERNEL_FOLDER / address
    folder.mkdir(parents=True)
    text = INFORMATION.format(name=name, uuid=uuid, address=address)
    (folder / "information").write_text(text)


def test_gpus_are_numbered_by_their_addresses(tmp_path: Path) -> None:
    add(tmp_path, "0000:41:00.0", "NVIDIA GeForce RTX 3060", "GPU-2")
    add(tmp_path, "0000:01:00.0", "NVIDIA GeForce RTX 3090", "GPU-1")
    first, second = listed_gpus(str(tmp_path)) or []

    assert GpuFacts(**first) == GpuFacts(
        index=0,
        uuid="GPU-1",
        name="NVIDIA GeForce RTX 3090",
        vendor="nvidia",
        pci_bus_id="0000:01:00.0",
    )
    assert (second["index"], second["name"]) == (1, "NVIDIA GeForce RTX 3060")


def test_without_the_driver_nothing_is_listed(tmp_path: Path) -> None:
    assert listed_gpus(str(tmp_path)) is None
    (tmp_path / KERNEL_FOLDER).mkdir(parents=True)
    assert listed_gpus(str(tmp_path)) is None


def test_a_gpu_that_says_nothing_is_a_gpu_all_the_same(tmp_path: Path) -> None:
    (tmp_path / KERNEL_FOLDER / "0000:01:00.0").mkdir(parents=True)

    assert listed_gpus(str(tmp_path)) == [
        {"index": 0, "uuid": None, "name": None, "vendor": "nvidia", "pci_bus_id": "0000:01:00.0"}
    ]
