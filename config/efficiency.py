"""The constants of decode and prefill for each kind of GPU, as `make fit` writes them.

Source: `efficiency.toml`, fitted on published measurements; docs/envelope.md has the formula, the
residuals and where each constant comes from. They were fitted together: use them together.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("efficiency.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConstants:
    """One kind of GPU: share of peak bandwidth reached, where the band begins and ends (of 1/t)."""

    efficiency_ratio: float
    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMemory:
    """One kind of memory under engines that serve batches; times are seconds per layer and token.

    `moe_layer_s` is added for mixtures of experts, `tensor_layer_s` where several GPUs share each
    layer. Bands (of 1/t) of one GPU and of several.
    """

    efficiency_ratio: float
    layer_s: float
    moe_layer_s: float
    tensor_layer_s: float
    low_ratio: float
    high_ratio: float
    several_low_ratio: float
    several_high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """One engine that serves batches, against the mean of them: efficiency, and time per layer."""

    efficiency_ratio: float
    layer_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConstants:
    """All engines that serve batches: vLLM, SGLang, TensorRT-LLM, LMDeploy.

    `kv_ratio` as for the others. `narrow_ratio`: weights of 4 bits are read at this share of the
    rate of others. `moe_tensor_layer_s`: on top where several GPUs share each layer of a mixture.
    `old_layer_s`: on top in vLLM before 0.8, and in other engines of 2024 or before.
    """

    kv_ratio: float
    narrow_ratio: float
    old_layer_s: float
    moe_tensor_layer_s: float
    memory: Mapping[str, ServingMemory]
    engine: Mapping[str, ServingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamafileConstants:
    """llamafile on the GPUs of one maker: seconds per layer on top, and its band."""

    layer_s: float
    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConstants:
    """One kind of GPU: share of peak arithmetic reached by a dense model, and the band around it.

    `moe_ratio` is what of that remains with a mixture of experts, whose products are small.
    """

    efficiency_ratio: float
    moe_ratio: float
    low_ratio: float
    high_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All constants of the GPU model; times are seconds per layer and token.

    `kv_ratio`: KV is read at this share of the rate of weights. `wide_ratio`: on unified memory
    weights of 8 bits and more are read faster by this factor. `layer_s` is by maker.
    `llamafile` is by maker too. `generic` is for GPUs whose kind was not measured, with memory of
    their own and unified.
    """

    kv_ratio: float
    wide_ratio: float
    layer_s: Mapping[str, float]
    moe_layer_s: float
    old_build_layer_s: float
    llamafile: Mapping[str, LlamafileConstants]
    decode: Mapping[str, DecodeConstants]
    generic: Mapping[str, DecodeConstants]
    serving: ServingConstants
    prefill: Mapping[str, PrefillConstants]


@cache
def constants() -> Constants:
    """Return the constants in force."""
    return parse(tomllib.loads(_TABLE.read_text(encoding="utf-8")))


def parse(raw: Mapping[str, Any]) -> Constants:
    """Return the constants in a table laid out like `efficiency.toml`.

    Raises:
        KeyError: a constant is absent.
    """
    shared = raw["shared"]
    return Constants(
        kv_ratio=shared["kv_ratio"],
        wide_ratio=shared["wide_ratio"],
        layer_s={maker: us * 1e-6 for maker, us in raw["layer_us"].items()},
        moe_layer_s=shared["moe_layer_us"] * 1e-6,
        old_build_layer_s=shared["old_build_layer_us"] * 1e-6,
        llamafile={
            maker: LlamafileConstants(
                layer_s=row["layer_us"] * 1e-6, low_ratio=row["low"], high_ratio=row["high"]
            )
            for maker, row in raw["llamafile"].items()
        },
        decode={kind: _decode(row) for kind, row in raw["decode"].items()},
        generic={memory: _decode(row) for memory, row in raw["generic"].items()},
        serving=_serving(raw["serving"]),
        prefill={
            kind: PrefillConstants(
                efficiency_ratio=row["efficiency"],
                moe_ratio=row["moe"],
                low_ratio=row["low"],
                high_ratio=row["high"],
            )
            for kind, row in raw["prefill"].items()
        },
    )


def _decode(row: Mapping[str, float]) -> DecodeConstants:
    return DecodeConstants(
        efficiency_ratio=row["efficiency"], low_ratio=row["low"], high_ratio=row["high"]
    )


def _serving(raw: Mapping[str, Any]) -> ServingConstants:
    return ServingConstants(
        kv_ratio=raw["kv_ratio"],
        narrow_ratio=raw["narrow_ratio"],
        old_layer_s=raw["old_layer_us"] * 1e-6,
        moe_tensor_layer_s=raw["moe_tensor_layer_us"] * 1e-6,
        memory={
            memory: ServingMemory(
                efficiency_ratio=row["efficiency"],
                layer_s=row["layer_us"] * 1e-6,
                moe_layer_s=row["moe_layer_us"] * 1e-6,
                tensor_layer_s=row["tensor_layer_us"] * 1e-6,
                low_ratio=row["low"],
                high_ratio=row["high"],
                several_low_ratio=row["several_low"],
                several_high_ratio=row["several_high"],
            )
            for memory, row in raw["memory"].items()
        },
        engine={
            engine: ServingEngine(efficiency_ratio=row["efficiency"], layer_ratio=row["layer"])
            for engine, row in raw["engine"].items()
        },
    )
