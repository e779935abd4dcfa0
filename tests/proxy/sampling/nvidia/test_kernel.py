"""What the kernel's driver says of its GPUs."""

from pathlib import Path

from slowtok.detectors.case.machine import GpuFacts
from slowtok.proxy.sampling.nvidia.kernel import FOLDER, listed_gpus

INFORMATION = """\
Model: \t\t {name}
IRQ:   \t\t 124
GPU UUID: \t {uuid}
Video BIOS: \t 94.02.42.00.b4
Bus Type: \t PCIe
Bus Location: \t {address}
Device Minor: \t 0
"""


def add(root: Path, address: str, name: str, uuid: str) -> None:
    folder = root / FOLDER / address
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
    (tmp_path / FOLDER).mkdir(parents=True)
    assert listed_gpus(str(tmp_path)) is None


def test_a_gpu_that_says_nothing_is_a_gpu_all_the_same(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "0000:01:00.0").mkdir(parents=True)

    assert listed_gpus(str(tmp_path)) == [
        {"index": 0, "uuid": None, "name": None, "vendor": "nvidia", "pci_bus_id": "0000:01:00.0"}
    ]
