"""`slowtok runs` and `slowtok run`: agent runs out of a log."""

import json
from pathlib import Path

import pytest

from fakes.commands import run
from fakes.logged_runs import NAME, two_runs

NOBODY = "127.0.0.1:9"


def told(log: Path, *arguments: str) -> str:
    done = run(*arguments, "--log", str(log), "--listen", NOBODY)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_runs_are_listed_the_newest_first(tmp_path: Path) -> None:
    log = two_runs(tmp_path)

    text = told(log, "runs")
    newest, older = json.loads(told(log, "runs", "--json"))["runs"]

    assert NAME in text
    assert (newest["name"], newest["requests"], newest["verdict"]) == (NAME, 2, "slow")
    assert (older["by"], older["requests"]) == ("session", 1)


def test_one_run_in_full(tmp_path: Path) -> None:
    log = two_runs(tmp_path)

    text = told(log, "run", NAME)
    last = json.loads(told(log, "run", "--json"))

    assert "queued" in text
    assert last == json.loads(told(log, "run", "last", "--json"))
    assert [turn["turn"] for turn in last["turns"]] == [1, 2]
    assert sum(last["split_ms"].values()) - last["wall_ms"] < 0.1
    assert last["fix_first"]["cause"] == "queued"


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    done = run("run", "nothing", "--log", str(two_runs(tmp_path)), "--listen", NOBODY)

    assert done.returncode == 1
    assert done.stderr == "slowtok: no run with id or name nothing; `slowtok runs` lists the runs\n"


def test_no_run_yet(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"")
    done = run("run", "--log", str(log), "--listen", NOBODY)

    assert done.returncode == 1
    assert done.stderr.startswith("slowtok: no run yet: a run is two requests that belong together")


def test_no_log(tmp_path: Path) -> None:
    done = run("runs", "--log", str(tmp_path / "none.jsonl"), "--listen", NOBODY)

    assert done.returncode == 3
    assert done.stderr.startswith(f"slowtok: there is no log at {tmp_path / 'none.jsonl'}; ")


@pytest.mark.parametrize("command", ["runs", "run"])
def test_a_file_of_another_kind(command: str, tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not\na log\n", "utf-8")
    done = run(command, "--log", str(foreign), "--listen", NOBODY)

    said = f"slowtok: no line of {foreign} is a slowtok record (2 lines read)\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


@pytest.mark.parametrize("command", ["runs", "run", "explain"])
def test_nobody_there_and_a_log_that_cannot_be_read_again(command: str) -> None:
    done = run(command, "--log", "-", "--listen", NOBODY)

    said = "and the log goes to standard output; name a log file with --log FILE"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"slowtok: no slowtok answers at {NOBODY}, {said}\n"
