"""The figures are counted rightly, and a small part of the runs is held to limits."""

import json
from pathlib import Path

import pytest

from accuracy.__main__ import PAGE, main
from accuracy.page import BEGIN, END, misses, put, render
from accuracy.runs import labelled, reports, run_one
from accuracy.score import Answer, figures
from simulator.healthy import HEALTHY
from simulator.scenarios import FAULTS, draw, split_of
from simulator.sight import CHANCES
from simulator.simulate import Scenario, Truth, simulate
from simulator.unexplained import UNEXPLAINED
from slowtok.proxy.outputs.case_file import dump_case
from test_simulator import a_world

SOME = 360
FAULTY = 6 * len(FAULTS)

LEAST_TOP1 = 0.80
MAX_MISSED = 0.13
MAX_FALSE_ALARMS = 0.005
MAX_CONFIDENTLY_WRONG = 0.01
"""A little worse than the figures in docs/accuracy.md, so that they notice what gets worse."""


def said(
    *causes: tuple[str, float],
    primary: str = "",
    allowed: str = "",
    slow: bool | None = True,
    verdict: str = "slow",
    engine: str = "ollama",
    cost: float = 1.0,
    blind: tuple[str, ...] = (),
) -> Answer:
    truth = Truth(
        slow=slow,
        primary=frozenset(primary.split()),
        allowed=frozenset(allowed.split()),
        cost=cost,
    )
    return Answer(
        name="run",
        number=0,
        group="fault",
        truth=truth,
        verdict=verdict,
        causes=tuple(causes),
        engine=engine,
        blind=blind,
    )


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """Healthy and unexplained runs of the tuning half: the ones that must stay quiet."""
    quiet = {**HEALTHY, **UNEXPLAINED}
    wanted = [one for one in draw(4 * SOME, "tuning") if one[0] in quiet][:SOME]
    return [run_one(one) for one in wanted]


@pytest.fixture(scope="module")
def faulty() -> list[Answer]:
    """Some runs of each fault, of the tuning half."""
    wanted = [one for one in draw(4 * FAULTY, "tuning") if one[0] in FAULTS][:FAULTY]
    return [run_one(one) for one in wanted]


def test_most_faults_are_named_first(faulty: list[Answer]) -> None:
    found = figures(faulty)

    assert found.slow > 0.7 * FAULTY
    assert found.failed == 0
    assert found.top1 is not None
    assert found.top1 >= LEAST_TOP1, list(misses(faulty))


def test_few_runs_that_were_slow_are_missed(faulty: list[Answer]) -> None:
    found = figures(faulty)

    assert found.missed <= MAX_MISSED * found.slow, list(misses(faulty))


def test_hardly_any_fault_is_given_a_wrong_name_with_confidence(faulty: list[Answer]) -> None:
    found = figures(faulty)

    assert found.confidently_wrong <= MAX_CONFIDENTLY_WRONG * found.slow, list(misses(faulty))


def test_every_fault_is_named_in_some_run(faulty: list[Answer]) -> None:
    rows = figures(faulty).by_scenario

    assert [row.name for row in rows if row.runs >= 3 and not row.first] == []


def test_confidence_is_no_promise_that_is_not_kept(
    faulty: list[Answer], answers: list[Answer]
) -> None:
    """What is said with 0.8 and more is true as often as that, over all runs."""
    sure = [each for each in figures([*faulty, *answers]).bins if each.low >= 0.8]

    assert sum(each.true for each in sure) >= 0.8 * sum(each.said for each in sure) > 0


def test_healthy_runs_raise_no_alarm(answers: list[Answer]) -> None:
    found = figures(answers)

    assert found.healthy > SOME / 2
    assert found.failed == 0
    assert found.false_alarms <= MAX_FALSE_ALARMS * found.healthy, list(misses(answers))
    assert found.called_slow <= MAX_FALSE_ALARMS * found.healthy, list(misses(answers))


def test_what_cannot_be_seen_is_not_named(answers: list[Answer]) -> None:
    found = figures(answers)

    assert found.unexplained > SOME / 10
    assert found.unexplained_named <= 0.05 * found.unexplained, list(misses(answers))


def test_a_true_cause_in_the_first_place_is_right() -> None:
    found = figures([
        said(("power-cap", 0.9), primary="power-cap"),
        said(("gpu-shared", 0.6), ("power-cap", 0.6), primary="power-cap"),
        said(primary="power-cap"),
    ])  # fmt: skip

    assert found.top1 == pytest.approx(1 / 3)
    assert found.top2 == pytest.approx(2 / 3)


def test_a_cause_named_on_a_run_that_was_not_slow_is_a_false_alarm() -> None:
    found = figures([
        said(("power-cap", 0.6), slow=False),
        said(slow=False, verdict="normal"),
        said(slow=False),
    ])  # fmt: skip

    assert (found.false_alarms, found.called_slow, found.healthy) == (1, 2, 3)


def test_a_name_for_what_cannot_be_seen_is_wrong_from_one_half_on() -> None:
    found = figures([said(("power-cap", 0.5)), said(("power-cap", 0.4)), said()])

    assert (found.unexplained_named, found.unexplained) == (1, 3)


def test_runs_that_lost_little_may_have_any_verdict_but_no_wrong_name() -> None:
    found = figures([
        said(("power-cap", 0.9), primary="power-cap", slow=None),
        said(primary="power-cap", slow=None, verdict="normal"),
        said(("gpu-shared", 0.9), primary="power-cap", slow=None),
    ])  # fmt: skip

    assert (found.slow, found.healthy, found.undecided) == (0, 0, 3)
    assert (found.undecided_named, found.confidently_wrong) == (1, 1)


def test_a_slow_run_is_missed_when_neither_that_nor_a_cause_is_said() -> None:
    found = figures([
        said(primary="power-cap", verdict="normal"),
        said(primary="power-cap", verdict="unknown"),
        said(primary="power-cap", verdict="slow"),
        said(("gpu-shared", 0.6), primary="power-cap"),
        said(verdict="normal"),
    ])  # fmt: skip

    assert (found.slow, found.missed, found.nameless) == (4, 2, 1)
    assert (found.unexplained, found.unexplained_missed) == (1, 1)


def test_figures_are_told_by_engine_by_size_and_by_what_was_not_seen() -> None:
    found = figures([
        said(("power-cap", 0.9), primary="power-cap", engine="vllm", cost=0.2, blind=("a", "b")),
        said(primary="power-cap", engine="vllm", cost=7.0, blind=("b",)),
        said(primary="power-cap", engine="ollama", cost=0.2),
    ])  # fmt: skip

    assert [(r.name, r.runs, r.first) for r in found.by_engine] == [
        ("ollama", 1, 0),
        ("vllm", 2, 1),
    ]
    assert [(r.runs, r.first) for r in found.by_size] == [(2, 1), (1, 0)]
    sight = [(r.name, r.runs) for r in found.by_sight]
    assert sight == [("(everything)", 1), ("a", 1), ("b", 2)]


def test_a_wrong_cause_said_with_confidence_is_counted() -> None:
    found = figures([
        said(("gpu-shared", 0.9), primary="power-cap"),
        said(("gpu-shared", 0.7), primary="power-cap"),
        said(("gpu-shared", 0.9), primary="power-cap", allowed="gpu-shared"),
    ])  # fmt: skip

    assert found.confidently_wrong == 1


def test_confidence_is_held_against_what_came_true() -> None:
    found = figures([
        said(("power-cap", 0.95), primary="power-cap"),
        said(("gpu-shared", 0.93), primary="power-cap"),
    ])  # fmt: skip

    assert [(b.said, b.true) for b in found.bins] == [(0, 0)] * 5 + [(2, 1)]


def test_the_page_keeps_what_stands_around_its_figures() -> None:
    page = put(f"above\n{BEGIN}\nold\n{END}\nbelow\n", render("Runs", figures([said()])))

    assert page.startswith("above\n")
    assert page.endswith(f"{END}\nbelow\n")
    assert "old" not in page
    assert "| right first (top-1) | - |" in page


def test_a_labelled_case_file_is_scored(tmp_path: Path) -> None:
    case = simulate(Scenario(name="plain", seed=1, world=a_world()))
    (tmp_path / "report.json").write_bytes(dump_case(case, {}, None))
    (tmp_path / "unlabelled.json").write_bytes(dump_case(case, {}, None))
    (tmp_path / "report.label.json").write_text(json.dumps({"slow": False}))

    (only,) = reports(tmp_path)

    assert (only.name, only.truth.slow, only.verdict) == ("report", False, "normal")


def test_labelled_cases_of_the_project_can_be_read() -> None:
    for path, label in labelled(Path(__file__).with_name("cases")):
        assert path.is_file()
        assert label["slow"] in (True, False, None)


def test_the_page_says_how_often_each_thing_is_hidden() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    told = {row[0].split(" (")[0]: row[1] for row in rows if len(row) == 2}

    assert {name: told.get(name) for name in CHANCES} == {
        name: f"{chance:.0%}".replace("%", " %") for name, chance in CHANCES.items()
    }


def test_published_runs_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--show-misses"])

    assert stopped.value.code == 2
    assert "tuning" in capsys.readouterr().err


def test_the_runs_of_these_tests_are_not_those_that_are_published(answers: list[Answer]) -> None:
    assert {split_of(a.name, a.number) for a in answers} == {"tuning"}
