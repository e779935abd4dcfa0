"""The fit of engines that serve batches: what is in the repository is what it gives, and holds."""

import numpy as np
import pytest
from fit.generic import fit_generic
from fit.rows import collapse, healthy, read
from fit.serving import GROUPS, IN_SAMPLE, ServingFit, fit_serving, group_of, read_engines
from fit.serving import serving_rows as rows_of

from slowtok.config.efficiency import constants
from slowtok.detectors.expectation.envelope import expect


@pytest.fixture(scope="module")
def found() -> ServingFit:
    return fit_serving(rows_of(read_engines())[0])


def test_what_is_not_clean_is_not_fitted_on(found: ServingFit) -> None:
    _, out = rows_of(read_engines())
    assert out["marked as not clean by who collected it"] == 174
    assert out["kernels that their author calls a fallback"] == 40
    assert not any(row.facts.server.speculative for row in found.rows)


def test_the_constants_in_force_are_what_the_fit_gives(found: ServingFit) -> None:
    known = constants().serving
    for name, memory in found.constants.memory.items():
        own = known.memory[name]
        assert own.efficiency_ratio == pytest.approx(memory.efficiency_ratio, abs=0.002), name
        assert own.layer_s == pytest.approx(memory.layer_s, rel=0.01)
        assert (own.low_ratio, own.high_ratio) == (memory.low_ratio, memory.high_ratio)
    for name, engine in found.constants.engine.items():
        assert known.engine[name].efficiency_ratio == pytest.approx(
            engine.efficiency_ratio, abs=0.002
        )
    assert known.kv_ratio == pytest.approx(found.constants.kv_ratio, abs=0.002)


def test_the_fit_and_the_product_say_the_same(found: ServingFit) -> None:
    predicted = np.array([row.tps for row in found.rows]) / np.exp(found.left[IN_SAMPLE])
    for row, tps in zip(found.rows, predicted, strict=True):
        facts = row.facts
        envelope = expect(facts.model, facts.device, facts.server, facts.context_tokens)
        assert envelope.expected_tps == pytest.approx(tps, rel=0.01), (row.gpu, row.model)


@pytest.mark.parametrize("fold", ["GPU left out", "source left out"])
def test_held_out_rows_are_covered(found: ServingFit, fold: str) -> None:
    measured = np.exp(found.left[fold])
    inside = np.empty(len(found.rows), dtype=bool)
    for group in GROUPS:
        low, high = found.band(group)
        chosen = np.array([group_of(row) == group for row in found.rows])
        inside[chosen] = (measured[chosen] >= low) & (measured[chosen] <= high)
    assert inside.mean() >= 0.95
    for engine in ("vllm", "sglang"):
        assert inside[np.array([row.engine == engine for row in found.rows])].mean() >= 0.93


def test_a_kind_that_is_left_out_whole_lies_in_the_wide_band() -> None:
    for memory, generic in fit_generic(collapse(healthy(read())[0])).items():
        c = generic.constants
        measured = np.exp(generic.left)
        assert ((measured >= c.low_ratio) & (measured <= c.high_ratio)).mean() >= 0.95, memory
        assert constants().generic[memory].low_ratio == c.low_ratio
