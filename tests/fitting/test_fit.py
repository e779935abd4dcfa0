"""The fit on the shipped measurements: what is in the repository is what it gives, and holds."""

from dataclasses import replace

import numpy as np
import pytest
from fit.bands import (
    APPLE,
    GDDR,
    above_high_edge,
    covered,
    detected,
    detected_by_setup,
    edges,
    groups_of,
    widths,
)
from fit.folds import HeldOut, hold_out, kinds_of, residuals_out, unified_of, without
from fit.model import Parameters, fit, residuals, table, token_s
from fit.rows import Row, collapse, healthy, read, weights

from slowtok.config.efficiency import constants
from slowtok.detectors.expectation.envelope import expect
from slowtok.detectors.expectation.memory import GPU_HIGH_RATIO


@pytest.fixture(scope="module")
def every() -> list[Row]:
    return healthy(read())[0]


@pytest.fixture(scope="module")
def few(every: list[Row]) -> list[Row]:
    return collapse(every)


@pytest.fixture(scope="module")
def found(few: list[Row]) -> Parameters:
    return fit(table(few, kinds_of(few)), unified=unified_of(few))


@pytest.fixture(scope="module")
def held(few: list[Row]) -> HeldOut:
    return hold_out(few, few)


@pytest.fixture(scope="module")
def held_every(few: list[Row], every: list[Row]) -> HeldOut:
    return hold_out(few, every)


def median_error(left: np.ndarray) -> float:
    return float(np.exp(np.median(np.abs(left)))) - 1


def test_a_misprint_a_capped_card_and_a_slow_host_are_not_fitted_on(every: list[Row]) -> None:
    assert all(row.tps < row.ceiling_tps for row in every)
    assert not [row for row in every if row.source in {"4x3090-archive", "llmfit-community"}]
    _, out = healthy(read())
    assert out["above what the memory can deliver: a misprint"] == 1  # 1,133 tokens/s on an M1
    assert out["power limit below the default"] > 0
    assert out["host is a single-board computer"] > 0


def test_no_source_dominates(few: list[Row]) -> None:
    by_setup: dict[tuple[str, str], float] = {}
    for row, weight in zip(few, weights(few), strict=True):
        key = (row.source, row.gpu)
        by_setup[key] = by_setup.get(key, 0.0) + weight**2
    assert all(total == pytest.approx(1.0) for total in by_setup.values())


def test_the_constants_in_force_are_what_the_fit_gives(found: Parameters) -> None:
    known = constants()
    for kind, ratio in found.efficiency.items():
        assert known.decode[kind].efficiency_ratio == pytest.approx(ratio, abs=0.002), kind
    for maker, us in found.layer_us.items():
        assert known.layer_s[maker] == pytest.approx(us * 1e-6, rel=0.01)
    assert known.kv_ratio == pytest.approx(found.kv_ratio, abs=0.002)
    assert known.wide_ratio == pytest.approx(found.wide_ratio, abs=0.002)
    assert known.moe_layer_s == pytest.approx(found.moe_layer_us * 1e-6, rel=0.01)
    assert known.old_build_layer_s == pytest.approx(found.old_build_layer_us * 1e-6, rel=0.01)


def test_the_edges_in_force_follow_the_rule(held: HeldOut, held_every: HeldOut) -> None:
    found = edges(held, held_every)
    for row, group in zip(held.rows, groups_of(held.rows), strict=True):
        in_force = (row.spec.decode.low_ratio, row.spec.decode.high_ratio)
        assert in_force == pytest.approx(found[group])


def test_the_fit_and_the_product_say_the_same(few: list[Row], found: Parameters) -> None:
    predicted = 1 / token_s(found, table(few, kinds_of(few)))
    for row, tps in zip(few, predicted, strict=True):
        facts = row.facts
        envelope = expect(facts.model, facts.device, facts.server, facts.context_tokens)
        assert envelope.expected_tps == pytest.approx(tps, rel=0.01), (row.gpu, row.model)


def test_the_fit_is_the_same_each_time(few: list[Row], found: Parameters) -> None:
    assert fit(table(few, kinds_of(few)), unified=unified_of(few)) == found


@pytest.mark.parametrize("fold", ["GPU", "source", "model"])
def test_held_out_rows_are_predicted_and_covered(
    held: HeldOut, held_every: HeldOut, fold: str
) -> None:
    found = edges(held, held_every)
    gddr = groups_of(held.rows) == GDDR
    assert median_error(held.residuals[fold]) <= 0.09
    assert covered(held, held, held_every, fold).mean() >= 0.95
    assert np.median(widths(held, found, fold)) <= 2.3
    assert np.median(widths(held, found, fold)[gddr]) <= 1.8
    assert covered(held, held, held_every, fold)[groups_of(held.rows) == APPLE].mean() >= 0.93
    assert not above_high_edge(held_every.rows).any()
    assert detected(held, found, fold, 2.0).mean() >= 0.95


def test_one_healthy_row_finds_half_as_slow_again(few: list[Row]) -> None:
    assert detected_by_setup(few, 1.5).mean() >= 0.95
    assert detected_by_setup(few, 1.0).mean() <= 0.05


@pytest.mark.parametrize(
    ("feature", "times"),
    [
        ("bytes of weights", 3), ("bandwidth", 3), ("KV bytes", 1.5), ("cost per layer", 1.5),
        ("kinds of GPU", 1.3), ("cost of experts", 1.05), ("age of the build", 1.02),
    ],
)  # fmt: skip
def test_each_part_of_the_formula_earns_its_place(
    few: list[Row], held: HeldOut, feature: str, times: float
) -> None:
    poorer = without(table(few, kinds_of(few)), feature)
    left = residuals_out(few, poorer, few, poorer, "GPU")
    base = held.residuals["GPU"]
    assert np.sqrt(np.mean(left**2)) > times * np.sqrt(np.mean(base**2))


def test_a_mixture_counted_as_dense_is_far_off(few: list[Row], found: Parameters) -> None:
    mixtures = [row for row in few if row.reads.is_moe]
    t = table(mixtures, kinds_of(few))
    files = np.array([float(row.facts.model.file_bytes or 0) for row in mixtures])
    dense = residuals(found, replace(t, weights=files))
    assert median_error(dense) > 5 * median_error(residuals(found, t))


def test_the_high_edge_is_just_above_the_best_run_ever_published(every: list[Row]) -> None:
    best = max(row.tps / row.ceiling_tps for row in every)
    assert 0.8 < best < GPU_HIGH_RATIO
