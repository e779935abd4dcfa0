import re
import tomllib
from pathlib import Path

import pytest

from slowtok.config import hardware
from slowtok.config.hardware import find_gpu

RAW = tomllib.loads(Path(hardware.__file__).with_name("hardware.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "RTX 4090 and more",
        "GeForce",
        "NVIDIA GeForce RTX 6090",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Apple",
        "llvmpipe (LLVM 15.0.7, 256 bits)",
    ],
)
def test_a_name_that_is_not_known_has_no_spec(name: str | None) -> None:
    assert find_gpu(name) is None


def test_a_card_that_nvml_can_measure_gets_no_bandwidth_from_its_name() -> None:
    for name in ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        spec = find_gpu(name)
        assert spec is not None
        assert spec.bandwidth_bytes_per_s is None


def test_a_chip_sold_with_two_memory_widths_needs_its_full_name() -> None:
    bare, full = find_gpu("Apple M4 Max"), find_gpu("Apple M4 Max (40-core)")
    assert bare is not None
    assert bare.bandwidth_bytes_per_s is None
    assert full is not None
    assert full.bandwidth_bytes_per_s == pytest.approx(546e9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 3060", "nvidia-gddr"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "nvidia-gddr"),
        ("NVIDIA GeForce RTX 4090 D", "nvidia-gddr"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-gddr"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "nvidia-gddr"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "nvidia-gddr"),
        ("NVIDIA L40S", "nvidia-gddr"),
        ("NVIDIA A10G", "nvidia-gddr"),
        ("NVIDIA A100 80GB PCIe", "nvidia-hbm"),
        ("NVIDIA H100 80GB HBM3", "nvidia-hbm"),
        ("Tesla V100-SXM2-16GB", "nvidia-hbm"),
        ("Tesla T4", "nvidia-turing"),
        ("Quadro RTX 6000", "nvidia-turing"),
        ("NVIDIA GeForce GTX 1660 Ti", "nvidia-turing"),
        ("NVIDIA GeForce GTX 1060 6GB", "nvidia-pascal"),
        ("Tesla P40", "nvidia-pascal"),
        ("AMD Instinct MI300X", "amd-instinct"),
        ("AMD Radeon RX 7900 XTX", "radeon-arc"),
        ("Apple M2 Ultra", "apple-ultra"),
        ("Apple M3 Pro", "apple"),
    ],
)
def test_the_class_of_a_name(name: str, kind: str) -> None:
    spec = find_gpu(name)
    assert spec is not None
    assert spec.kind == kind


def test_gb10_has_its_bandwidth_because_nvml_has_not() -> None:
    spec = find_gpu("NVIDIA GB10")
    assert spec is not None
    assert spec.bandwidth_bytes_per_s == pytest.approx(273.1e9)
    assert spec.efficiency_ratio == 0.88


def test_every_name_with_a_bandwidth_has_exactly_one_class() -> None:
    for name in RAW["bandwidth_gb_s"]:
        kinds = [
            c["name"]
            for c in RAW["class"]
            if any(re.fullmatch(p, name, re.IGNORECASE) for p in c["names"])
        ]
        assert len(kinds) == 1, (name, kinds)
