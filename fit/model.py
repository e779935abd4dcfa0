"""The formula on arrays, its parameters, and the fit.

    t = (weights / wide + KV / kv_ratio) / (efficiency x bandwidth) + layers x (c + c_moe + c_old)

It must say the same as `slowtok.detectors.expectation.memory`; tests/fitting holds the
two together.
Loss: soft-L1 on the logarithm of the rate, so that one bad row does not pull a constant.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fit.rows import Row, weights
from slowtok.detectors.expectation.memory import WIDE_BITS

Array = NDArray[np.float64]

MAKERS = ("nvidia", "amd", "apple")
SCALE = 0.15  # log rate: where soft-L1 turns from squares to absolute values; near the scatter
PRIOR_WEIGHT = 0.5
MAX_EFFICIENCY = 0.92  # just under the share of peak that no run passes

# Where a constant lies without data, and how far data may move it (in logarithms). Efficiencies by
# kind of memory are heuristic; a fit is repeated with each kind left out, and then falls
# back to them.
FAMILY_PRIOR = {"unified": (0.80, 0.15), "gddr": (0.80, 0.15)}
# Kinds with few rows here or none: from an earlier fit of the same form to 583 collapsed rows of 74
# GPUs. GB10's is lowered from 0.88, which held 8-bit weights too; Radeon's and Arc's raised from
# 0.72, which held a lower cost per layer.
PUBLISHED_PRIOR = {
    "nvidia-gb10": (0.86, 0.05),
    "nvidia-turing": (0.72, 0.05),
    "nvidia-pascal": (0.68, 0.05),
    "nvidia-hbm": (0.57, 0.05),
    "radeon-arc": (0.75, 0.05),
    "amd-instinct": (0.42, 0.05),
}
SHARED_PRIOR = {
    "kv_ratio": (0.80, 0.3),
    "wide_ratio": (1.05, 0.1),
    "layer_us": (50.0, 0.5),
    "moe_layer_us": (50.0, 0.5),
    "old_build_layer_us": (35.0, 0.5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Measurements as columns. `kind` and `maker` index into `kinds` and `MAKERS`."""

    kinds: tuple[str, ...]
    kind: NDArray[np.int64]
    maker: NDArray[np.int64]
    weights: Array
    kv: Array
    layers: Array
    moe: Array
    old: Array
    wide: Array
    bandwidth: Array
    log_tps: Array
    loss_weight: Array

    def part(self, chosen: NDArray[np.bool_]) -> "Table":
        """Return the chosen rows, weighted as in the whole."""
        names = [name for name in self.__slots__ if name != "kinds"]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The constants; `layer_us` is by maker. Logarithms of them are what is fitted."""

    efficiency: Mapping[str, float]
    layer_us: Mapping[str, float]
    kv_ratio: float
    wide_ratio: float
    moe_layer_us: float
    old_build_layer_us: float


def table(rows: Sequence[Row], kinds: tuple[str, ...]) -> Table:
    """Return the rows as columns."""

    def column(values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64)

    return Table(
        kinds=kinds,
        kind=np.array([kinds.index(r.spec.kind) for r in rows]),
        maker=np.array([MAKERS.index(r.spec.maker) for r in rows]),
        weights=column([r.reads.weights for r in rows]),
        kv=column([r.reads.kv for r in rows]),
        layers=column([r.reads.layers for r in rows]),
        moe=column([r.reads.is_moe for r in rows]),
        old=column([r.old for r in rows]),
        wide=column([r.spec.unified and (r.reads.bits_per_weight or 0) > WIDE_BITS for r in rows]),
        bandwidth=column([r.bandwidth for r in rows]),
        log_tps=column([math.log(r.tps) for r in rows]),
        loss_weight=column(weights(rows)),
    )


def token_s(p: Parameters, t: Table) -> Array:
    """Return the predicted time of one token for each row."""
    efficiency = np.array([p.efficiency[kind] for kind in t.kinds])[t.kind]
    efficiency = np.minimum(efficiency * np.where(t.wide > 0, p.wide_ratio, 1.0), 0.93)
    layer_us = np.array([p.layer_us[maker] for maker in MAKERS])[t.maker]
    layer_us = layer_us + p.moe_layer_us * t.moe + p.old_build_layer_us * t.old
    read_s = (t.weights + t.kv / p.kv_ratio) / (efficiency * t.bandwidth)
    seconds: Array = read_s + t.layers * layer_us * 1e-6
    return seconds


def residuals(p: Parameters, t: Table) -> Array:
    """Return log(measured / predicted)."""
    logs: Array = t.log_tps + np.log(token_s(p, t))
    return logs


def fit(t: Table, *, unified: frozenset[str]) -> Parameters:
    """Return the parameters that fit best; deterministic."""
    names, start, spread, most = _priors(t.kinds, unified)

    def loss(x: Array) -> Array:
        data = residuals(_unpack(names, x, t.kinds), t) * t.loss_weight / SCALE
        return np.concatenate([data, PRIOR_WEIGHT * (x - start) / spread])

    bounds = (np.full(len(names), -10.0), most)
    found = least_squares(loss, np.minimum(start, most - 1e-6), bounds=bounds, loss="soft_l1")
    return _unpack(names, found.x, t.kinds)


def _priors(
    kinds: tuple[str, ...], unified: frozenset[str]
) -> tuple[tuple[str, ...], Array, Array, Array]:
    priors = {}
    for kind in kinds:
        family = "unified" if kind in unified else "gddr"
        priors[f"efficiency {kind}"] = PUBLISHED_PRIOR.get(kind, FAMILY_PRIOR[family])
    for name, prior in SHARED_PRIOR.items():
        if name == "layer_us":
            priors |= {f"layer_us {maker}": prior for maker in MAKERS}
        else:
            priors[name] = prior
    most = [math.log(MAX_EFFICIENCY) if n.startswith("efficiency") else 10.0 for n in priors]
    start = np.array([math.log(value) for value, _ in priors.values()])
    spread = np.array([spread for _, spread in priors.values()])
    return tuple(priors), start, spread, np.array(most)


def _unpack(names: tuple[str, ...], x: Array, kinds: tuple[str, ...]) -> Parameters:
    value = {name: math.exp(v) for name, v in zip(names, x, strict=True)}
    return Parameters(
        efficiency={kind: value[f"efficiency {kind}"] for kind in kinds},
        layer_us={maker: value[f"layer_us {maker}"] for maker in MAKERS},
        kv_ratio=value["kv_ratio"],
        wide_ratio=value["wide_ratio"],
        moe_layer_us=value["moe_layer_us"],
        old_build_layer_us=value["old_build_layer_us"],
    )
