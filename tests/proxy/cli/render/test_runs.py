"""Runs in a terminal: what there is room for, and no number cut."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fakes.cases import FIRING, healthy, with_timeline
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.render.runs import run_page, runs_page
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.runs.ledger import Ledger

CAUSE = "prompt-cache-miss"
STEP_S = 60.0


def ledger(*, parents: bool = False, tools_ms: float = 0.0) -> Ledger:
    """Three turns of a run, of which two read their prompts anew."""
    found = Ledger()
    for turn in (1, 2, 3):
        case = healthy() if turn == 1 else FIRING[CAUSE]()
        started_unix_s = case.timeline.started_unix_s + turn * STEP_S
        timeline = replace(case.timeline, started_unix_s=started_unix_s)
        case = with_timeline(replace(case, timeline=timeline), request_id=f"{turn:032x}")
        run: dict[str, Any] = {"id": "c3f9ab27d7e8011a", "by": "header", "name": "nightly job"}
        run |= {"turn": turn} | ({"parent": 1} if parents and turn == 3 else {})
        record = make_record(case, diagnose(case)) | {"run": run}
        found.add(record | ({"since_previous_ms": tools_ms} if turn > 1 else {}))
    return found


def text(shown: RenderableType, columns: int) -> str:
    out = io.StringIO()
    Console(file=out, width=columns, highlight=False).print(shown)
    assert max(map(len, out.getvalue().splitlines())) <= columns
    return out.getvalue()


def of_run(columns: int, **how: Any) -> str:
    run = ledger(**how).one("last")
    assert run is not None
    return text(run_page(run, columns), columns)


@pytest.mark.parametrize("columns", [72, 80, 110, 140])
def test_the_list_shows_loss_cause_and_gain_whole(columns: int) -> None:
    [run] = ledger().newest_first()

    row = text(runs_page([run], columns), columns).splitlines()[1]

    assert row.startswith("nightly job")
    assert CAUSE in row
    assert row.count(" s ") + row.count(" min") >= 2
    assert "..." not in row


def test_the_list_says_of_a_run_without_a_loss_how_it_was() -> None:
    healthy_run = {**ledger().newest_first()[0], "fix_first": None, "lost_ms": {}}
    healthy_run["verdict"] = "normal"

    assert "normal" in text(runs_page([healthy_run], 80), 80)


def test_with_little_room_a_turn_keeps_its_id_and_its_cause() -> None:
    lines = of_run(80).splitlines()

    header, *turns = lines[lines.index("Turns") + 1 :]
    assert header.split()[:8] == ["turn", "id", "prompt", "cached", "again", "out", "took", "why"]
    assert [turn.split()[-1] for turn in turns[1:3]] == [CAUSE] * 2
    assert turns[2].split()[1] == "00000003"


def test_with_room_there_is_a_waterfall_with_its_key() -> None:
    wide = of_run(140)

    assert "a reading known prompt again" in wide
    assert "a reading known prompt again" not in of_run(80)
    assert any(line.rstrip().endswith("d") for line in wide.splitlines() if CAUSE in line)


@pytest.mark.parametrize(("tools_ms", "shown"), [(0.0, False), (1500.0, True)])
def test_tools_have_a_column_where_they_took_time(tools_ms: float, *, shown: bool) -> None:
    header = next(x for x in of_run(110, tools_ms=tools_ms).splitlines() if x.startswith("turn"))

    assert ("tools" in header.split()) is shown


def test_a_turn_that_another_one_started_says_after_which() -> None:
    assert " after " not in of_run(110)
    assert " after " in of_run(110, parents=True)
