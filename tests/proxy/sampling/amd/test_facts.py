from pathlib import Path
from typing import Any

from fakes.amdgpu import APU, APU_SENSORS, GIB, IDS, XTX, Tree
from slowtok.detectors.case.machine import GpuFacts, GpuSample
from slowtok.proxy.sampling.amd.facts import ABSENT, read_facts, read_limits
from slowtok.proxy.sampling.amd.files import find_cards
from slowtok.proxy.sampling.host.procfs import ProcFiles


def facts_of(root: Path) -> dict[str, Any]:
    files = ProcFiles()
    (card,) = find_cards(files, str(root))
    return read_facts(card, files, str(root)) | read_limits(card)


def test_facts_of_a_board(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.switched_card()
    tree.write("usr/share/libdrm/amdgpu.ids", IDS)
    tree.kfd_node(0, location_id=0, version=0, width=0)
    tree.kfd_node(1, location_id=0x0300, version=110000, width=384)
    tree.write("sys/module/amdgpu/version", "6.12.12\n")
    facts = facts_of(tmp_path)

    assert GpuFacts(**facts, index=0) == GpuFacts(
        index=0,
        uuid="GPU-7c2f1d9a5b3e4c60",
        name="AMD Radeon RX 7900 XTX",
        vendor="amd",
        architecture="gfx1100",
        pci_bus_id="0000:03:00.0",
        slowdown_temperature_c=100,
        absent=ABSENT,
        total_bytes=24 * GIB,
        bus_width_bits=384,
        max_sm_clock_mhz=2482,
        max_memory_clock_mhz=1249,
        driver="amdgpu 6.12.12",
        default_power_limit_w=339.0,
        min_power_limit_w=0.0,
        max_power_limit_w=389.0,
        max_pcie_generation=3,
        max_pcie_width=16,
        gpu_max_pcie_generation=4,
        unified_memory=False,
        mig=False,
    )


def test_a_processors_gpu_has_no_memory_and_no_link_of_its_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.card("card0", "devices/pci0000:00/0000:00:08.1/0000:c5:00.0", APU, APU_SENSORS)
    facts = facts_of(tmp_path)

    assert facts["unified_memory"] is True
    assert facts["total_bytes"] is None
    assert facts["uuid"] is None
    assert "max_pcie_generation" not in facts
    assert facts["default_power_limit_w"] is None
    assert facts["slowdown_temperature_c"] is None


def test_a_processor_without_any_gpu_memory_is_unified_too(tmp_path: Path) -> None:
    files = XTX | {"mem_info_vram_total": "0\n"}
    Tree(tmp_path).card("card0", "devices/pci0000:00/0000:01:00.0", files)

    assert facts_of(tmp_path)["unified_memory"] is True


def test_where_no_sensor_can_be_seen_nothing_is_claimed(tmp_path: Path) -> None:
    Tree(tmp_path).card("card0", "devices/pci0000:00/0000:01:00.0", XTX, None)
    facts = facts_of(tmp_path)

    assert facts["unified_memory"] is None
    assert facts["total_bytes"] == 24 * GIB
    assert "default_power_limit_w" not in facts


def test_names(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    folder = tree.switched_card()
    assert facts_of(tmp_path)["name"] == "AMD GPU 1002:744c rev c8"

    tree.write("opt/amdgpu/share/libdrm/amdgpu.ids", IDS)
    assert facts_of(tmp_path)["name"] == "AMD Radeon RX 7900 XTX"

    tree.write(f"{folder}/product_name", "AMD Radeon PRO W7900\n")
    assert facts_of(tmp_path)["name"] == "AMD Radeon PRO W7900"


def test_a_compute_node_of_another_gpu_says_nothing_of_this_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.switched_card()
    tree.kfd_node(1, location_id=0x0400, version=90402, width=8192)
    facts = facts_of(tmp_path)

    assert facts["architecture"] is None
    assert facts["bus_width_bits"] is None


def test_architectures_are_written_as_the_compiler_names_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.switched_card()
    for version, name in ((90402, "gfx942"), (90010, "gfx90a"), (110501, "gfx1151")):
        tree.kfd_node(1, location_id=0x0300, version=version, width=4096)
        assert facts_of(tmp_path)["architecture"] == name


def test_what_is_absent_are_fields_of_a_sample() -> None:
    assert set(ABSENT) <= set(GpuSample.__dataclass_fields__)
