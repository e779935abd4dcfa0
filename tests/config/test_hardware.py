import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slowtok.config import hardware
from slowtok.config.efficiency import constants
from slowtok.config.hardware import (
    card_behind,
    card_called,
    cards,
    cards_with,
    find_card,
    find_gpu,
    gpu_like,
)

RAW = tomllib.loads(Path(hardware.__file__).with_name("hardware.toml").read_text(encoding="utf-8"))
NOT_MEASURED = {"NVIDIA Jetson AGX Orin 64GB", "NVIDIA Jetson AGX Thor", "NVIDIA Thor"}


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


def test_a_card_has_the_bandwidth_of_its_name_where_its_driver_tells_none() -> None:
    spec, laptop = (
        find_gpu("NVIDIA GeForce RTX 4090"),
        find_gpu("NVIDIA GeForce RTX 4090 Laptop GPU"),
    )
    assert spec is not None
    assert laptop is not None
    assert spec.bandwidth_bytes_per_s == pytest.approx(1008.1e9)
    assert laptop.bandwidth_bytes_per_s == pytest.approx(576e9)


@pytest.mark.parametrize(
    ("facts", "kind", "memory"),
    [
        ({"architecture": "Ampere", "bus_width_bits": 384}, "nvidia-ampere", "gddr"),
        ({"architecture": "Ampere", "bus_width_bits": 5120}, "nvidia-hbm", "hbm"),
        ({"architecture": "Blackwell", "bus_width_bits": 8192}, "nvidia-hbm", "hbm"),
        ({"architecture": "Blackwell", "bus_width_bits": 512}, "nvidia-ada", "gddr"),
        ({"architecture": "Hopper"}, "nvidia-hbm", "hbm"),
        ({"architecture": "Blackwell", "unified": True}, "generic", "unified"),
        ({"architecture": "Feynman", "bus_width_bits": 384}, "generic", "gddr"),
        ({}, "generic", "gddr"),
    ],
)
def test_a_name_that_no_table_has_is_of_the_kind_its_driver_tells(
    facts: dict[str, Any], kind: str, memory: str
) -> None:
    spec = gpu_like("NVIDIA Unheard Of", **facts)
    assert (spec.kind, spec.memory, spec.listed) == (kind, memory, False)
    assert spec.decode.low_ratio == 0.5
    assert spec.card is None


@pytest.mark.parametrize(
    ("profile", "card"),
    [
        ("GRID A5000-8Q", "NVIDIA RTX A5000"),
        ("NVIDIA RTXA5000-24Q", "NVIDIA RTX A5000"),
        ("GRID P40-24Q", "Tesla P40"),
        ("NVIDIA A40-48Q", "NVIDIA A40"),
        ("NVIDIA L40S-4C", "NVIDIA L40S"),
    ],
)
def test_a_profile_of_a_virtual_gpu_names_its_card(profile: str, card: str) -> None:
    found = card_behind(profile)
    assert found is not None
    assert found.name == card


def test_a_chip_sold_with_two_memory_widths_needs_its_full_name() -> None:
    bare, full = find_gpu("Apple M4 Max"), find_gpu("Apple M4 Max (40-core)")
    assert bare is not None
    assert bare.bandwidth_bytes_per_s is None
    assert full is not None
    assert full.bandwidth_bytes_per_s == pytest.approx(546e9)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 3060", "nvidia-ampere"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "nvidia-ada"),
        ("NVIDIA GeForce RTX 4090 D", "nvidia-ada"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "nvidia-ada"),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "nvidia-ada"),
        ("NVIDIA L40S", "nvidia-ada"),
        ("NVIDIA A10G", "nvidia-ampere"),
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
        ("AMD Radeon RX 580", "radeon-arc"),
        ("Intel Arc B580", "radeon-arc"),
        ("AMD Radeon RX 9070 XT", "radeon-rdna4"),
        ("AMD Radeon AI PRO R9700", "radeon-rdna4"),
        ("Radeon 8060S Graphics", "strix-halo"),
        ("NVIDIA GeForce RTX 2050", "nvidia-ampere"),
        ("NVIDIA GeForce RTX 2080 Ti", "nvidia-turing"),
        ("NVIDIA RTX 2000 Ada Generation", "nvidia-ada"),
        ("Apple M1 Max", "apple-m1-max"),
        ("Apple M1 Ultra", "apple-m1-max"),
        ("Apple M4 Max (40-core)", "apple-max"),
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
    assert spec.unified


def test_a_card_that_is_not_there_has_a_nominal_bandwidth() -> None:
    spec = find_gpu("NVIDIA GeForce RTX 4090")
    assert spec is not None
    assert spec.card is not None
    assert spec.card.bandwidth_bytes_per_s == pytest.approx(1008e9, rel=0.001)
    assert spec.card.memory_bytes == 24 * 2**30
    assert spec.card.flops == pytest.approx(330.3e12)


def test_a_laptop_is_never_taken_for_the_card_of_the_same_number() -> None:
    laptop, card = find_card("NVIDIA GeForce RTX 4090 Laptop GPU"), find_card("RTX 4090")
    assert laptop is not None
    assert laptop.bandwidth_bytes_per_s == pytest.approx(576e9)
    assert card is None


def test_every_card_is_of_exactly_one_kind() -> None:
    for card in cards().values():
        kinds = [
            k["name"]
            for k in RAW["kind"]
            if any(re.fullmatch(p, card.name, re.IGNORECASE) for p in k["names"])
        ]
        assert len(kinds) == (0 if card.name in NOT_MEASURED else 1), (card.name, kinds)


def test_every_kind_has_constants_and_every_constant_a_kind() -> None:
    kinds = {entry["name"] for entry in RAW["kind"]}
    assert set(constants().decode) == kinds
    assert set(constants().prefill) <= kinds
    assert {entry["maker"] for entry in RAW["kind"]} == set(constants().layer_s)


@pytest.mark.parametrize("text", ["RTX4090", "rtx 4090", "NVIDIA GeForce RTX 4090", "rtx-4090"])
def test_a_card_is_known_however_its_name_is_spaced(text: str) -> None:
    card = card_called(text)
    assert card is not None
    assert card.name == "NVIDIA GeForce RTX 4090"


def test_a_name_that_is_near_is_offered_and_not_taken() -> None:
    assert card_called("RTX 4091") is None
    assert "NVIDIA GeForce RTX 4090" in cards_with("RTX 4091")
    assert cards_with("zzz") == ()
