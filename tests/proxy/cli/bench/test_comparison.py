"""Better, same or worse: the rule on made-up numbers."""

import random

import pytest
from rich.console import Console

from slowtok.proxy.cli.bench import layout
from slowtok.proxy.cli.bench.comparison import (
    Difference,
    cause_change,
    change,
    changes,
    differences,
    pooled_spread,
)
from slowtok.proxy.cli.bench.figures import BenchRun, Figure
from slowtok.proxy.cli.bench.result import Result


def figure(*values: float, more_is_better: bool = True, name: str = "decode_tps") -> Figure:
    return Figure(name=name, unit="tokens/s", values=values, more_is_better=more_is_better)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ((100, 100, 100), (100, 100, 100), "same"),
        ((100, 100, 100), (103, 103, 103), "same"),  # 3 % is noise, whatever the spread
        ((100, 100, 100), (103.1, 103.1, 103.1), "better"),
        ((100, 100, 100), (96.9, 96.9, 96.9), "worse"),
        ((90, 100, 110), (105, 115, 125), "same"),  # 15 is within twice a spread of 10
        ((90, 100, 110), (111, 121, 131), "better"),  # 21 is not
        ((99, 100, 101), (104, 105, 106), "better"),
        ((100,), (50,), "unknown"),  # of one run each: what is noise is not known
        ((100,), (90, 105, 120), "same"),  # the other one's spread counts
    ],
)
def test_the_rule(before: tuple[float, ...], after: tuple[float, ...], outcome: str) -> None:
    assert change(figure(*before), figure(*after)).outcome == outcome


def test_less_energy_is_better() -> None:
    found = change(figure(2.0, 2.0, more_is_better=False), figure(1.5, 1.5, more_is_better=False))

    assert (found.outcome, round(found.ratio, 2)) == ("better", -0.25)


def test_equal_machines_are_seldom_told_apart() -> None:
    dice = random.Random(1)

    def runs() -> Figure:
        return figure(*(dice.gauss(100, 5) for _ in range(3)))

    outcomes = [change(runs(), runs()).outcome for _ in range(2000)]

    assert outcomes.count("same") / len(outcomes) > 0.9


def test_the_limit_is_said() -> None:
    assert change(figure(90, 100, 110), figure(100, 110, 120)).limit == pytest.approx(20)
    assert change(figure(100, 100), figure(100)).limit == pytest.approx(3)
    assert change(figure(100), figure(100)).limit is None


def test_without_noise_there_is_no_verdict_and_it_says_so() -> None:
    result = Result(at="now", protocol={}, setup={}, figures=(), runs=())
    found = [change(figure(82), figure(77.6))]
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(layout.comparison(result, found, cause_change([], []), [], "before.json"))

    said = captured.get()
    assert "unknown  decode  82 -> 77.6" in said
    assert "one run each: what is noise is not known" in said
    assert "No verdict: --runs 3" in said
    assert "worse" not in said
    assert "noise up to" not in said


def test_pooled_spread_weighs_by_runs() -> None:
    assert pooled_spread(figure(99, 101), figure(100, 100, 100)) == pytest.approx((2 / 3) ** 0.5)
    assert pooled_spread(figure(1), figure(2)) is None


def test_only_figures_of_both_are_compared() -> None:
    assert [c.name for c in changes([figure(1)], [figure(1), figure(2, name="prefill_tps")])] == [
        "decode_tps"
    ]


def test_setups_differ_by_path() -> None:
    before = {"engine": {"version": "b1", "threads": 4, "slots": 1}, "gpus": [{"driver": "580"}]}
    after = {"engine": {"version": "b2", "threads": 4}, "gpus": [{"driver": "580"}, {"index": 1}]}

    assert differences(before, after) == [
        Difference(name="engine.version", before="b1", after="b2"),
        Difference(name="engine.slots", before=1, after=None),
        Difference(name="gpus.1.index", before=None, after=1),
    ]
    assert differences(before, before) == []


def test_causes_go_stay_and_come() -> None:
    def run(*causes: str) -> BenchRun:
        return BenchRun(
            label="", id="", verdict="slow", findings=tuple({"cause": c} for c in causes)
        )

    found = cause_change([run("power-cap", "queued")], [run("queued"), run("vram-spill")])

    assert (found.gone, found.stayed, found.new) == (("power-cap",), ("queued",), ("vram-spill",))
