"""GPUs that are cut into slices (MIG), through nvidia-ml-py and the stand-in; time is data."""

from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import H100, MIB, MIG, RTX_4090
from fakes.nvml.clock import Clock
from fakes.nvml.stand_in import Script
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.sampling.nvidia.devices import NvidiaDevices

NO_EVENTS = {"Xids": None}
GIB = 1024 * MIB


@pytest.fixture
def cards() -> tuple[dict[str, Any], ...]:
    return (H100 | MIG | NO_EVENTS, RTX_4090)


def devices() -> NvidiaDevices:
    return NvidiaDevices(stand_in.binding(), {7: "vllm"}.get)


def lines(gpus: NvidiaDevices, *, slow_tier: bool = True) -> dict[int, dict[str, Any]]:
    return {line["index"]: line for line in gpus.sample(slow_tier=slow_tier, servers={7})}


def facts(gpus: NvidiaDevices) -> dict[int, GpuFacts]:
    return {found["index"]: GpuFacts(**found) for found in gpus.facts or ()}


def test_slices_stand_in_the_gpus_place(script: Script) -> None:
    gpus = devices()
    lines(gpus)
    found = facts(gpus)

    assert {index: gpu.uuid for index, gpu in found.items()} == {
        2: "MIG-1",
        3: "MIG-2",
        1: RTX_4090["UUID"],  # whole GPUs keep the driver's numbers
    }
    assert len(gpus) == 3
    assert found[2].partition_of == found[3].partition_of == H100["UUID"]
    assert found[1].partition_of is None
    assert found[2].name == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert (found[2].mig, found[2].total_bytes, found[3].total_bytes) == (True, 40 * GIB, 10 * GIB)
    assert found[2].bus_width_bits is None
    assert (found[2].architecture, found[2].pci_bus_id) == ("Hopper", "0000:65:00.0")
    assert found[2].unified_memory is False


def test_memory_and_processes_are_the_slices_own(script: Script) -> None:
    found = lines(devices())

    assert (found[2]["free_bytes"], found[3]["free_bytes"]) == (30 * GIB, 9 * GIB)
    assert found[2]["reserved_bytes"] == 64 * MIB
    (process,) = found[2]["processes"]
    assert (process["pid"], process["is_server"]) == (7, True)
    assert process["memory_bytes"] == 9 * GIB
    assert found[3]["processes"] == []


def test_what_only_the_whole_gpu_knows_is_told_of_each_slice(script: Script) -> None:
    found = lines(devices())

    for name, value in {"power_w": 310.5, "sm_clock_mhz": 2520, "temperature_c": 64}.items():
        assert found[2][name] == found[3][name] == value
    assert found[2]["ecc_errors"] == 3
    assert found[2]["pcie_width"] == 8


def test_traffic_of_the_memory_is_the_slices_own(script: Script, clock: Clock) -> None:
    gpus = devices()
    lines(gpus)
    clock.now_s += 1.0
    found = lines(gpus)

    assert (found[2]["dram_busy_ratio"], found[3]["dram_busy_ratio"]) == (0.2, 0.05)


def test_every_field_of_a_slice_is_given_or_absent(script: Script, clock: Clock) -> None:
    gpus = devices()
    lines(gpus)
    clock.now_s += 0.5
    (line, absent) = lines(gpus)[2], facts(gpus)[2].absent

    fields = set(GpuSample.__slots__) - {"at_s", "index"}
    assert {name for name in fields if line.get(name) is None} == absent.keys()
    assert absent == {
        "busy_ratio": "not available for a MIG slice",
        "memory_busy_ratio": "not available for a MIG slice",
        "pcie_rx_bytes_per_s": "counted for the whole GPU only, not for a MIG slice",
        "pcie_tx_bytes_per_s": "counted for the whole GPU only, not for a MIG slice",
        "remapped_rows": "not supported by this GPU or driver",
        "vgpu_licensed": "not a vGPU: needs no licence",
        "xid": "not supported by this GPU or driver",
        "xids": "not supported by this GPU or driver",
    }


def test_a_gpus_share_is_no_slices_share(script: Script) -> None:
    script.gpu(0, {"UtilizationRates": "97 61"})  # though a driver should not say it

    assert "busy_ratio" not in lines(devices())[2]


@pytest.mark.parametrize("error", [None, "!4", "!13"])
def test_one_slice_may_lack_what_the_other_has(script: Script, error: str | None) -> None:
    calls = ("MemoryInfo_v2", "ComputeRunningProcesses", "GraphicsRunningProcesses")
    script.gpu(0, {f"mig2.{call}": error for call in calls})
    gpus = devices()
    found = lines(gpus)

    assert "free_bytes" not in found[3]
    assert found[3]["processes"] is None
    assert {"free_bytes", "processes"} <= facts(gpus)[3].absent.keys()
    assert not {"free_bytes", "processes"} & facts(gpus)[2].absent.keys()


def test_slices_of_an_older_card_have_no_share_of_bandwidth(script: Script) -> None:
    script.gpu(0, {"GpmQueryDeviceSupport": 0, "Architecture": 7})
    gpus = devices()
    lines(gpus)

    assert facts(gpus)[2].absent["dram_busy_ratio"] == "not supported by this GPU or driver"


def test_idle_looks_at_each_slice(script: Script) -> None:
    gpus = devices()
    found = {line["index"]: line for line in gpus.sample_idle(servers=set())}

    assert found.keys() == {1, 2, 3}
    assert found[3]["free_bytes"] == 9 * GIB


def test_a_gpu_that_may_be_cut_but_is_not_stands_for_itself(script: Script) -> None:
    script.gpu(0, {"mig0.UUID": None, "mig2.UUID": None})
    gpus = devices()
    lines(gpus)

    assert facts(gpus)[0].partition_of is None
    assert facts(gpus)[0].mig is True
    assert facts(gpus).keys() == {0, 1}


def test_slices_that_change_are_found_and_keep_their_numbers(script: Script, clock: Clock) -> None:
    gpus = devices()
    lines(gpus)
    script.gpu(0, {"mig2.UUID": None, "mig4.UUID": "MIG-4"})
    clock.now_s += 15.5
    assert lines(gpus) == {}
    assert gpus.reason == "GPU 0: its MIG slices changed"
    clock.now_s += 5.0

    assert lines(gpus).keys() == {2, 4, 1}
    assert facts(gpus)[4].uuid == "MIG-4"
    assert gpus.reason is None


def test_slices_of_a_lost_gpu_come_back_under_their_numbers(script: Script, clock: Clock) -> None:
    gpus = devices()
    lines(gpus)
    before = {index: gpu.uuid for index, gpu in facts(gpus).items()}
    script.set(gpu0="!15")
    assert lines(gpus) == {}
    script.set(gpu0=None)
    clock.now_s += 5.0
    lines(gpus)

    assert {index: gpu.uuid for index, gpu in facts(gpus).items()} == before


def test_a_lost_slices_buffers_are_given_back(script: Script) -> None:
    gpus = devices()
    live = gpus._nvml.nvmlLib.stand_in_live_samples
    before = live()
    lines(gpus)
    assert live() == before + 4
    script.set(gpu0="!15")
    lines(gpus)

    assert live() == before
