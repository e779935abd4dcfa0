"""What decode and prefill reach on each kind of GPU: the constants that `make fit` writes.

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
    """One kind of GPU: share of peak bandwidth reached, and where the band begins (of 1/t)."""

    efficiency_ratio: float
    low_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamafileConstants:
    """llamafile on the GPUs of one maker: seconds per layer on top, and where its band begins."""

    layer_s: float
    low_ratio: float


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
    `llamafile` is by maker too.
    """

    kv_ratio: float
    wide_ratio: float
    layer_s: Mapping[str, float]
    moe_layer_s: float
    old_build_layer_s: float
    llamafile: Mapping[str, LlamafileConstants]
    decode: Mapping[str, DecodeConstants]
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
            maker: LlamafileConstants(layer_s=row["layer_us"] * 1e-6, low_ratio=row["low"])
            for maker, row in raw["llamafile"].items()
        },
        decode={
            kind: DecodeConstants(efficiency_ratio=row["efficiency"], low_ratio=row["low"])
            for kind, row in raw["decode"].items()
        },
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
