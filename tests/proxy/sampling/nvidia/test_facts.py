"""What does not change about a GPU, through nvidia-ml-py and the stand-in library."""

from typing import Any

import pytest

from fakes.nvml import stand_in
from fakes.nvml.cards import MIB, RTX_4090
from fakes.nvml.stand_in import Script
from slowtok.detectors.case.machine import GpuFacts
from slowtok.proxy.sampling.nvidia.calls import Device
from slowtok.proxy.sampling.nvidia.facts import bandwidth_bytes_per_s, read_facts

NO_PERMISSION, NOT_SUPPORTED = "!4", None
MEMORY = ("MemoryInfo", "MemoryInfo_v2")


def facts(*defines: str) -> GpuFacts:
    pynvml = stand_in.binding(*defines)
    pynvml.nvmlInit()
    return GpuFacts(**read_facts(Device(pynvml, 0), driver="580.95.05"))


@pytest.mark.parametrize(
    ("clock_mhz", "bits", "published_gb_s"),
    [
        (10501, 384, 1008),
        (9751, 384, 936),
        (14001, 512, 1792),
        (1215, 3072, 933),
        (2619, 5120, 3352),
    ],
    ids=["4090 GDDR6X", "3090 GDDR6X", "5090 GDDR7", "A30 HBM2", "H100 HBM3"],
)
def test_bandwidth_is_the_published_one(clock_mhz: int, bits: int, published_gb_s: int) -> None:
    bandwidth = bandwidth_bytes_per_s(clock_mhz, bits)

    assert bandwidth == pytest.approx(published_gb_s * 1e9, rel=0.002)


@pytest.mark.parametrize(("clock_mhz", "bits"), [(None, 384), (10501, None), (0, 384), (10501, 0)])
def test_bandwidth_without_its_facts_is_unknown(clock_mhz: int | None, bits: int | None) -> None:
    assert bandwidth_bytes_per_s(clock_mhz, bits) is None


def test_all_facts_of_a_desktop_card(script: Script) -> None:
    assert facts() == GpuFacts(
        index=0,
        uuid=RTX_4090["UUID"],
        name="NVIDIA GeForce RTX 4090",
        vendor="nvidia",
        architecture="Ada",
        pci_bus_id="0000:01:00.0",
        virtual=False,
        slowdown_temperature_c=93,
        total_bytes=24564 * MIB,
        bus_width_bits=384,
        max_sm_clock_mhz=3105,
        max_memory_clock_mhz=10501,
        bandwidth_bytes_per_s=2 * 10501e6 * 48,
        driver="580.95.05",
        default_power_limit_w=450.0,
        min_power_limit_w=150.0,
        max_power_limit_w=600.0,
        max_pcie_generation=4,
        max_pcie_width=16,
        gpu_max_pcie_generation=4,
        unified_memory=False,
        mig=None,
    )


@pytest.mark.parametrize("memory", [NOT_SUPPORTED, "0 0 0 0"], ids=["not supported", "total of 0"])
def test_unified_memory_has_no_size_no_bandwidth_and_no_link(script: Script, memory: Any) -> None:
    script.gpu(0, dict.fromkeys(MEMORY, memory))
    found = facts()

    assert found.unified_memory is True
    assert found.total_bytes is None
    assert found.bandwidth_bytes_per_s is None
    assert (found.max_pcie_generation, found.max_pcie_width) == (None, None)


@pytest.mark.parametrize("error", [NO_PERMISSION, "!999"])
def test_memory_that_may_not_be_seen_says_nothing_about_its_kind(
    script: Script, error: str
) -> None:
    script.gpu(0, dict.fromkeys(MEMORY, error) | {"MigMode": "1 1"})
    found = facts()

    assert (found.unified_memory, found.total_bytes, found.mig) == (None, None, True)
    assert found.max_pcie_width == 16


@pytest.mark.parametrize(("modes", "mig"), [("1 0", True), ("0 1", False), (NOT_SUPPORTED, None)])
def test_mig_is_the_current_mode(script: Script, modes: str | None, mig: bool | None) -> None:
    script.gpu(0, {"MigMode": modes})

    assert facts().mig is mig


@pytest.mark.parametrize(
    ("code", "name"),
    [(6, "Turing"), (9, "Hopper"), (10, "Blackwell"), (99, None), (0xFFFFFFFF, None)],
)
def test_architectures_have_their_names(script: Script, code: int, name: str | None) -> None:
    script.gpu(0, {"Architecture": code})

    assert facts().architecture == name


@pytest.mark.parametrize(("mode", "virtual"), [(0, False), (1, False), (2, True), (3, False)])
def test_only_a_guest_of_a_hypervisor_that_shares_it_has_a_virtual_gpu(
    script: Script, mode: int, virtual: bool
) -> None:
    script.gpu(0, {"VirtualizationMode": mode})

    assert facts().virtual is virtual


def test_a_driver_without_the_newer_functions_has_the_same_memory(script: Script) -> None:
    assert facts("OLD_DRIVER").total_bytes == 24564 * MIB


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("UUID", ["uuid"]),
        ("Name", ["name"]),
        ("Architecture", ["architecture"]),
        ("PciInfo", ["pci_bus_id"]),
        ("VirtualizationMode", ["virtual"]),
        ("TemperatureThreshold.1", ["slowdown_temperature_c"]),
        ("MemoryBusWidth", ["bus_width_bits", "bandwidth_bytes_per_s"]),
        ("MaxClockInfo.1", ["max_sm_clock_mhz"]),
        ("MaxClockInfo.2", ["max_memory_clock_mhz", "bandwidth_bytes_per_s"]),
        ("PowerManagementDefaultLimit", ["default_power_limit_w"]),
        ("PowerManagementLimitConstraints", ["min_power_limit_w", "max_power_limit_w"]),
        ("MaxPcieLinkGeneration", ["max_pcie_generation"]),
        ("MaxPcieLinkWidth", ["max_pcie_width"]),
        ("GpuMaxPcieLinkGeneration", ["gpu_max_pcie_generation"]),
    ],
)
@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION, "!13", "!999"])
def test_what_one_call_does_not_say_is_missing_alone(
    script: Script, name: str, fields: list[str], error: str | None
) -> None:
    whole = facts()
    script.gpu(0, {name: error})
    found = facts()

    changed = {field for field in GpuFacts.__slots__ if getattr(found, field) is None}
    assert changed == {*fields, "mig", "partition_of"}
    assert whole.mig is None
