"""Level, step, slope and stalls, from arrivals alone."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fakes.cases import case
from slowtok.detectors.analysis.rate_shape import stalls_of, step_of
from slowtok.detectors.case.case import Case, Tokens


def arriving(gaps_s: Iterable[float]) -> Case:
    """A case whose tokens came with these gaps between them."""
    times = [1000.0]
    for gap_s in gaps_s:
        times.append(times[-1] + gap_s)
    whole = case()
    tokens = Tokens(prompt=10, completion=len(times))
    timeline = replace(whole.timeline, token_at_s=tuple(times), tokens=tokens)
    return replace(whole, timeline=timeline)


def noisy(gap_s: float, count: int, seed: int) -> list[float]:
    source = random.Random(seed)
    return [gap_s * source.uniform(0.5, 1.5) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_a_level_rate_has_no_step(seed: int) -> None:
    assert step_of(arriving(noisy(0.02, 500, seed))) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_gentle_slope_is_no_step(seed: int) -> None:
    gaps = [gap * (1 + 0.15 * i / 500) for i, gap in enumerate(noisy(0.02, 500, seed))]
    assert step_of(arriving(gaps)) is None


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_too_few_tokens_say_nothing(count: int) -> None:
    assert step_of(arriving([0.02] * count)) is None
    assert stalls_of(arriving([0.02] * min(count, 10))) == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_step_down_is_found_where_it_was(seed: int) -> None:
    step = step_of(arriving(noisy(0.02, 400, seed) + noisy(0.06, 200, seed + 100)))
    assert step is not None
    assert step.token == pytest.approx(400, abs=25)
    assert step.before_tps == pytest.approx(50, rel=0.15)
    assert step.after_tps == pytest.approx(16.7, rel=0.15)


def test_a_step_up_is_one_too() -> None:
    step = step_of(arriving(noisy(0.06, 200, 1) + noisy(0.02, 400, 2)))
    assert step is not None
    assert step.after_tps > step.before_tps


def test_stalls_are_gaps_out_of_all_proportion() -> None:
    gaps = [*noisy(0.02, 100, 3), 2.5, *noisy(0.02, 100, 4)]
    stalls = stalls_of(arriving(gaps))
    assert [s.gap_s for s in stalls] == [pytest.approx(2.5)]
    assert stalls_of(arriving([1.0] * 50)) == ()  # slow, but even
