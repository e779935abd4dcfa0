"""The published measurements through the answers of `slowtok fit --batch`."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from slowtok.detectors.expectation.prospect import ExpectedRate, Prospect, prospect
from slowtok.detectors.expectation.published import facts_of

DATA = Path(__file__).parents[3] / "fit" / "data" / "decode_rates.csv"
Row = dict[str, str]


def rows(chosen: Callable[[Row], bool]) -> list[tuple[float, Prospect]]:
    with DATA.open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if chosen(row)]
    sized = [row for row in found if row["weights_gib"] or row["quant"]]
    return [(float(row["decode_tps"]), prospect(facts_of(row))) for row in sized]


def is_benchmark(row: Row) -> bool:
    others = ("LocalScore", "llmfit-community", "4x3090-archive")
    return row["kind"] == "gpu" and row["n_gpus"] == "1" and row["source_id"] not in others


@pytest.mark.parametrize(
    ("chosen", "least_inside", "widest"),
    [
        (is_benchmark, 0.95, 2.3),
        (lambda row: is_benchmark(row) and "NVIDIA GeForce" in row["gpu"], 0.95, 2.0),
        (lambda row: row["source_id"] == "LocalScore" and row["kind"] == "gpu", 0.95, 7.0),
        (lambda row: row["kind"] == "multigpu", 0.95, 4.0),
        (lambda row: row["kind"] == "offload", 0.95, 7.0),
        (lambda row: row["kind"] == "cpu", 0.92, 25.0),
    ],
)
def test_measured_rates_lie_in_the_band(
    chosen: Callable[[Row], bool], least_inside: float, widest: float
) -> None:
    known = [(tps, found.decode) for tps, found in rows(chosen)]
    bands = [(tps, d.low, d.high) for tps, d in known if d.low and d.high]
    inside = [low <= tps <= high for tps, low, high in bands]
    assert len(bands) > 20
    assert sum(inside) / len(inside) >= least_inside
    assert median(high / low for _, low, high in bands) <= widest


def test_no_benchmark_but_a_misprint_lies_above_the_ceiling() -> None:
    found = rows(lambda row: row["kind"] in {"gpu", "multigpu", "offload"})
    above = [tps for tps, p in found if p.decode.ceiling and tps > p.decode.ceiling]
    assert above == [1133.05]  # an M1, with an 8B


def test_what_runs_whole_is_never_said_not_to_fit() -> None:
    assert all(found.fits is not False for _, found in rows(is_benchmark))


HALF_IN_RAM = {
    "gpu": "NVIDIA GeForce RTX 4090", "mem_bw_gbs": "1008.1", "vram_gb": "24",
    "backend": "llama.cpp CUDA", "model": "llama 8B Q4_K - Medium", "params_b": "8.03",
    "quant": "Q4_K_M", "weights_gib": "4.58", "ngl_or_offload": "20",
}  # fmt: skip


@pytest.mark.parametrize("ram_bytes_per_s", [None, 64e9], ids=["typical RAM", "known RAM"])
def test_drafts_raise_the_high_edge_of_a_split_and_take_its_ceiling(
    ram_bytes_per_s: float | None,
) -> None:
    def decode(backend: str) -> ExpectedRate:
        facts = facts_of(HALF_IN_RAM | {"backend": backend})
        if ram_bytes_per_s is not None:
            device = replace(facts.device, ram_bandwidth_bytes_per_s=ram_bytes_per_s)
            facts = replace(facts, device=device, ram_assumed=False)
        return prospect(facts).decode

    plain, drafting = decode("llama.cpp CUDA"), decode("llama.cpp CUDA + MTP n=2")

    assert (drafting.low, drafting.expected) == (plain.low, plain.expected)
    assert drafting.high == pytest.approx(3 * (plain.high or 0))
    assert plain.ceiling is not None
    assert drafting.ceiling is None


@pytest.mark.parametrize(
    ("asked", "layers"), [("20", 20), ("60", 44), ("-1", 44)], ids=["fits", "too many", "not told"]
)
def test_what_does_not_fit_lies_in_ram_as_far_as_it_has_to(asked: str, layers: int) -> None:
    large = HALF_IN_RAM | {"params_b": "70.6", "weights_gib": "40", "n_layers": "80"}
    large |= {"model": "llama 70B Q4_K - Medium", "ngl_or_offload": asked}
    found = prospect(facts_of(large))

    assert found.fits is False
    assert found.gpu_layers == layers
    assert any("44 of 80 layers" in note for note in found.basis) is (asked != "20")
