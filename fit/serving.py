"""Engines that serve batches, at one stream: constants of their own, from `data/engine_rates.csv`.

    t = (weights / narrow + KV / kv_ratio) / (efficiency x bandwidth x GPUs)
        + layers x (engine x c + c_moe + c_tensor + c_moe_tensor + c_old)

It must say the same as `slowtok.detectors.expectation.serving`; tests/fitting holds the
two together.
Efficiency is that of the memory times that of the engine; the engines' are held to a mean of 1 by
their priors. Held out are GPUs and sources, as in the fit of llama.cpp and its kin.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fit.model import MAX_EFFICIENCY, PRIOR_WEIGHT, SCALE, Array
from slowtok.config.efficiency import ServingConstants, ServingEngine, ServingMemory
from slowtok.detectors.expectation.memory import GPU_HIGH_RATIO, spec_of
from slowtok.detectors.expectation.published import Published, facts_of
from slowtok.detectors.expectation.reads import NoBasis, Reads, reads_of
from slowtok.detectors.expectation.serving import SERVING_ENGINES, is_narrow, is_old, memory_class

DATA = Path(__file__).with_name("data") / "engine_rates.csv"
MEMORIES = ("hbm", "gddr", "unified", "instinct")
GROUPS = [(memory, several) for memory in MEMORIES for several in (False, True)]
IN_SAMPLE = "in sample"
LOW_QUANTILE, HIGH_QUANTILE = 0.03, 0.97
# Chosen, not fitted: few sources do not show how much the others differ.
MAX_LOW_RATIO, LEAST_HIGH_RATIO = 0.70, 1.35
FEW_SOURCES = 3

# Where a constant lies without data, and how far data may move it (in logarithms).
PRIORS = {
    "efficiency": (0.75, 0.12),
    "layer_us": (80.0, 0.3),
    "moe_layer_us": (60.0, 0.4),
    "tensor_layer_us": (40.0, 0.3),
    "engine": (1.0, 0.15),
    "layer": (1.0, 0.4),
    "kv_ratio": (0.80, 0.3),
    "narrow_ratio": (0.80, 0.25),
    "old_layer_us": (60.0, 0.6),
    "moe_tensor_layer_us": (50.0, 0.7),
}
BY_MEMORY = ("efficiency", "layer_us", "moe_layer_us", "tensor_layer_us")
BY_ENGINE = ("engine", "layer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRow:
    """One measurement: `gpus` share each layer, `bandwidth` is that of one, in bytes/s."""

    source: str
    gpu: str
    model: str
    memory: str
    engine: str
    gpus: int
    old: bool
    narrow: bool
    reads: Reads
    bandwidth: float
    tps: float
    facts: Published


FOLDS: dict[str, Callable[[ServingRow], str]] = {
    "GPU": lambda row: row.gpu,
    "source": lambda row: row.source,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """The constants with their bands; `left` is log(measured / predicted) in and out of sample."""

    constants: ServingConstants
    rows: Sequence[ServingRow]
    left: Mapping[str, Array]

    def band(self, group: tuple[str, bool]) -> tuple[float, float]:
        """Return the low and the high factor of a group."""
        memory, several = self.constants.memory[group[0]], group[1]
        if several:
            return memory.several_low_ratio, memory.several_high_ratio
        return memory.low_ratio, memory.high_ratio


def serving_rows(raw: Iterable[dict[str, str]]) -> tuple[list[ServingRow], Counter[str]]:
    """Return the rows that are fitted on, and how many were left out for what."""
    rows: list[ServingRow] = []
    out: Counter[str] = Counter()
    for record in raw:
        found = _unfit(record) or _row(record)
        if isinstance(found, str):
            out[found] += 1
        else:
            rows.append(found)
    return rows, out


def read_engines(path: Path = DATA) -> list[dict[str, str]]:
    """Return the rows of the file as they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fit_serving(rows: Sequence[ServingRow]) -> ServingFit:
    """Return the constants, and how far off they are on GPUs and sources that were left out."""
    everywhere = np.ones(len(rows), dtype=bool)
    table = _Table(rows)
    found = table.fit(everywhere)
    left = {IN_SAMPLE: table.residuals(found)}
    left |= {f"{fold} left out": _left_out(table, rows, fold, found) for fold in FOLDS}
    edges = {group: _edges(rows, left, group) for group in GROUPS}
    return ServingFit(constants=_constants(found, edges), rows=rows, left=left)


def group_of(row: ServingRow) -> tuple[str, bool]:
    """Return what shares a band: the memory, and whether several GPUs share each layer."""
    return row.memory, row.gpus > 1


def _unfit(record: dict[str, str]) -> str | None:
    reasons = {
        "marked as not clean by who collected it": record["fit_use"] != "1",
        "engine of another family": record["engine"] not in SERVING_ENGINES,
        "kernels that their author calls a fallback": "fallback kernels" in record["notes"],
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _row(record: dict[str, str]) -> ServingRow | str:
    try:
        facts = facts_of(record)
        reads = reads_of(facts.model, facts.server, facts.context_tokens)
    except (ValueError, NoBasis):
        return "model or cache not known"
    gpu = facts.device.gpus[0] if facts.device.gpus else None
    if gpu is None or not gpu.bandwidth_bytes_per_s:
        return "bandwidth not known"
    spec = spec_of(gpu)
    if not spec.listed:
        return "kind of GPU not known"
    gpus = facts.server.tensor_parallel or 1
    tps = float(record["decode_tps"])
    if tps > GPU_HIGH_RATIO * gpus * gpu.bandwidth_bytes_per_s / reads.total:
        return "above what the memory can deliver"
    return ServingRow(
        source=record["source_id"],
        gpu=record["gpu"],
        model=record["model"],
        memory=memory_class(spec),
        engine=facts.server.kind,
        gpus=gpus,
        old=is_old(facts.server),
        narrow=is_narrow(facts.model),
        reads=reads,
        bandwidth=gpu.bandwidth_bytes_per_s,
        tps=tps,
        facts=facts,
    )


class _Table:
    """The rows as columns, and the loss on them."""

    def __init__(self, rows: Sequence[ServingRow]) -> None:
        def column(values: Iterable[float]) -> Array:
            return np.array(list(values), dtype=np.float64)

        counts = Counter((row.source, row.gpu) for row in rows)
        self.memory = np.array([MEMORIES.index(row.memory) for row in rows])
        self.engine = np.array([SERVING_ENGINES.index(row.engine) for row in rows])
        self.weights = column(row.reads.weights for row in rows)
        self.kv = column(row.reads.kv for row in rows)
        self.layers = column(row.reads.layers for row in rows)
        self.moe = column(row.reads.is_moe for row in rows)
        self.old = column(row.old for row in rows)
        self.narrow = column(row.narrow for row in rows)
        self.several = column(row.gpus > 1 for row in rows)
        self.bandwidth = column(row.bandwidth * row.gpus for row in rows)
        self.log_tps = column(math.log(row.tps) for row in rows)
        self.loss_weight = column(counts[row.source, row.gpu] ** -0.25 for row in rows)

    def residuals(self, p: dict[str, float]) -> Array:
        """Return log(measured / predicted)."""

        def by(name: str, keys: Sequence[str], index: NDArray[np.int64]) -> Array:
            return np.array([p[f"{name} {key}"] for key in keys])[index]

        memory = {name: by(name, MEMORIES, self.memory) for name in BY_MEMORY}
        engine = {name: by(name, SERVING_ENGINES, self.engine) for name in BY_ENGINE}
        narrow = np.where(self.narrow > 0, p["narrow_ratio"], 1.0)
        ratio = np.minimum(memory["efficiency"] * engine["engine"] * narrow, GPU_HIGH_RATIO)
        layer_us = engine["layer"] * memory["layer_us"] + memory["moe_layer_us"] * self.moe
        layer_us = layer_us + memory["tensor_layer_us"] * self.several
        layer_us = layer_us + p["moe_tensor_layer_us"] * self.several * self.moe
        layer_us = layer_us + p["old_layer_us"] * self.old
        read_s = (self.weights + self.kv / p["kv_ratio"]) / (ratio * self.bandwidth)
        found: Array = self.log_tps + np.log(read_s + self.layers * layer_us * 1e-6)
        return found

    def fit(
        self, chosen: NDArray[np.bool_], near: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return the constants that fit the chosen rows best; sought from `near`; deterministic."""
        names = [f"{name} {key}" for name in BY_MEMORY for key in MEMORIES]
        names += [f"{name} {key}" for name in BY_ENGINE for key in SERVING_ENGINES]
        names += [name for name in PRIORS if name not in (*BY_MEMORY, *BY_ENGINE)]
        priors = [PRIORS[name.split()[0]] for name in names]
        start = np.log([value for value, _ in priors])
        spread = np.array([spread for _, spread in priors])
        most = np.array(
            [math.log(MAX_EFFICIENCY) if n.startswith("efficiency") else 10.0 for n in names]
        )

        def values(x: Array) -> dict[str, float]:
            return dict(zip(names, np.exp(x).tolist(), strict=True))

        def loss(x: Array) -> Array:
            data = (self.residuals(values(x)) * self.loss_weight)[chosen] / SCALE
            return np.concatenate([data, PRIOR_WEIGHT * (x - start) / spread])

        bounds = (np.full(len(names), -10.0), most)
        begin = start if near is None else np.log([near[name] for name in names])
        begin = np.minimum(begin, most - 1e-6)
        found = least_squares(loss, begin, bounds=bounds, loss="soft_l1", ftol=1e-6)
        return values(found.x)


def _left_out(
    table: _Table, rows: Sequence[ServingRow], fold: str, near: Mapping[str, float]
) -> Array:
    values = np.array([FOLDS[fold](row) for row in rows])
    left = np.empty(len(rows))
    for value in np.unique(values):
        left[values == value] = table.residuals(table.fit(values != value, near))[values == value]
    return left


def _edges(
    rows: Sequence[ServingRow], left: Mapping[str, Array], group: tuple[str, bool]
) -> tuple[float, float]:
    """Return the band of a group; from few sources it holds that of all with as many GPUs too."""
    counts = Counter((row.source, row.gpu) for row in rows)
    each = np.array([counts[row.source, row.gpu] ** -0.25 for row in rows])
    parts = [np.array([group_of(row) == group for row in rows])]
    if len({row.source for row in rows if group_of(row) == group}) < FEW_SOURCES:
        parts.append(np.array([(row.gpus > 1) == group[1] for row in rows]))
    cuts = [(left[title][part], each[part]) for title in left for part in parts]
    low = min(quantile(found, weight, LOW_QUANTILE) for found, weight in cuts)
    high = max(quantile(found, weight, HIGH_QUANTILE) for found, weight in cuts)
    low, high = min(math.exp(low), MAX_LOW_RATIO), max(math.exp(high), LEAST_HIGH_RATIO)
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


def quantile(values: Array, each: Array, share: float) -> float:
    """Return a quantile of values that count for different amounts."""
    order = np.argsort(values)
    reached = np.cumsum(each[order]) / each.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(order) - 1)])


def _constants(
    p: dict[str, float], edges: dict[tuple[str, bool], tuple[float, float]]
) -> ServingConstants:
    def memory(name: str) -> ServingMemory:
        one, several = edges[name, False], edges[name, True]
        return ServingMemory(
            efficiency_ratio=p[f"efficiency {name}"],
            layer_s=p[f"layer_us {name}"] * 1e-6,
            moe_layer_s=p[f"moe_layer_us {name}"] * 1e-6,
            tensor_layer_s=p[f"tensor_layer_us {name}"] * 1e-6,
            low_ratio=one[0],
            high_ratio=one[1],
            several_low_ratio=several[0],
            several_high_ratio=several[1],
        )

    return ServingConstants(
        kv_ratio=p["kv_ratio"],
        narrow_ratio=p["narrow_ratio"],
        old_layer_s=p["old_layer_us"] * 1e-6,
        moe_tensor_layer_s=p["moe_tensor_layer_us"] * 1e-6,
        memory={name: memory(name) for name in MEMORIES},
        engine={
            name: ServingEngine(
                efficiency_ratio=p[f"engine {name}"], layer_ratio=p[f"layer {name}"]
            )
            for name in SERVING_ENGINES
        },
    )
