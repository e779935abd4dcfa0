"""Reports on several GPUs, and on what links them."""

from collections.abc import Mapping
from typing import Any

from cases.parts import (
    Asked,
    Report,
    build,
    card,
    weights,
)
from slowtok.detectors.case.case import Baseline

CLUB = "https://github.com/noonghunna/club-3090"

Readings = tuple[Mapping[str, Any], ...]


def _tensor_parallel(util: tuple[float, float], power: tuple[float, float]) -> Readings:
    return tuple(
        {"busy_ratio": u, "power_w": p, "power_limit_w": 290.0, "pcie_generation": 3}
        for u, p in zip(util, power, strict=True)
    )


def _allreduce(name: str, tps: float, gpu: Readings, **of: Any) -> Report:
    cards = tuple(card("NVIDIA GeForce RTX 3090", i, max_pcie_generation=3) for i in range(2))
    case = build(
        Asked(tps=tps, told=False),
        kind="vllm",
        model=weights("Qwen3.6-27B", "INT4", like="Qwen3.5-27B"),
        cards=cards,
        gpu=gpu,
        server={"tensor_parallel": 2},
    )
    return Report(
        name=name,
        case=case,
        slow=True,
        primary=("multi-gpu-split", "pcie-link"),
        inferred={
            "model": "27B at 4 bits: what two such cards are used with there",
            "device.gpus.max_pcie_generation": "PCIe 3 is what the slots give",
        },
        **of,
    )


def _allreduce_x99() -> Report:
    return _allreduce(
        "l1-allreduce-x99",
        50.0,
        _tensor_parallel((0.82, 0.51), (195.0, 243.0)),
        url=f"{CLUB}/issues/356",
        says="50 tokens/s on PCIe 3 where 66-71 are usual; 82 and 51 % busy, 195 and 243 of 290 W",
    )


def _allreduce_old_xeon() -> Report:
    return _allreduce(
        "v15-allreduce-xeon",
        32.0,
        _tensor_parallel((0.28, 0.85), (174.0, 254.0)),
        url=f"{CLUB}/blob/master/docs/HARDWARE.md",
        says="32 tokens/s on PCIe 3 and an old Xeon where 89 are usual; 28 and 85 % busy, "
        "174 and 254 W",
    )


def _riser(name: str, tps: float, mode: str, **of: Any) -> Report:
    cards = (
        card("NVIDIA GeForce RTX 5060 Ti"),
        card("NVIDIA GeForce RTX 2070", 1, max_pcie_generation=2, max_pcie_width=1),
    )
    case = build(
        Asked(tps=tps),
        kind="llama-server",
        model=weights("Qwen3.8-27B", "Q3_K_M", like="Qwen3.5-27B"),
        cards=cards,
        gpu=({}, {"pcie_generation": 2, "pcie_width": 1}),
        server={"split_mode": mode},
    )
    return Report(
        name=name,
        url="https://github.com/sudoingX/qwen38-mtp/pull/65",
        case=case,
        allowed=("pcie-link", "multi-gpu-split"),
        **of,
    )


_RISER_INFERRED = {"model": "3 bits: the quantisation of that collection, and what 24 GB hold"}


def _riser_by_layer() -> Report:
    return _riser(
        "l3-riser-by-layer",
        25.5,
        "layer",
        says="25.5 tokens/s with one of two cards on PCIe 2.0 x1: what their bandwidth gives",
        slow=False,
        verdicts=("normal",),
        inferred=_RISER_INFERRED,
    )


def _riser_by_tensor() -> Report:
    return _riser(
        "l3-riser-by-tensor",
        25.5 * 1.29,
        "row",
        says="tensor split gains 29 % with a card on PCIe 2.0 x1, 48 and 68 % on better links",
        slow=None,
        verdicts=("slow", "normal"),
        needs="what goes over the link, and its own past on a better one",
        inferred=_RISER_INFERRED,
    )


def _two_radeons() -> Report:
    case = build(
        Asked(tps=25.10),
        kind="llama-server",
        model=weights("Llama-3.2-3B", "F16"),
        cards=(card("AMD Radeon RX 6800"), card("AMD Radeon RX 6700 XT", 1)),
        server={"split_mode": "layer"},
        device={"os": "linux"},
    )
    return Report(
        name="l5-two-radeons",
        url="https://github.com/ggml-org/llama.cpp/issues/10682",
        says="57.18 and 46.68 tokens/s on one card each, 25.10 on both by layer",
        case=case,
        slow=True,
        primary=("multi-gpu-split",),
    )


def _x1_riser() -> Report:
    case = build(
        Asked(tps=3.5, completion=80),
        kind="ollama",
        cards=(card("AMD Radeon RX 580", max_pcie_width=16),),
        gpu=({"pcie_width": 1},),
        device={"os": "linux"},
        baseline=Baseline(count=20, decode_tps=11.5),
    )
    return Report(
        name="v19-x1-riser",
        url="https://github.com/robertrosenbusch/gfx803_rocm/issues/51",
        says="3.5 tokens/s on an x1 riser, 7-8 at x4, 11-12 in a full slot; model and traffic "
        "not told",
        case=case,
        slow=True,
        allowed=("pcie-link",),
        needs="what goes over the link: AMD's driver does not tell",
        inferred={"baseline": "the same card in a full slot"},
    )


REPORTS = (
    _allreduce_x99,
    _allreduce_old_xeon,
    _riser_by_layer,
    _riser_by_tensor,
    _two_radeons,
    _x1_riser,
)
