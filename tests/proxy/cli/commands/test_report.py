"""`slowtok report`: the command, its files and its exit codes."""

import json
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fakes.commands import run
from fakes.logs import line

AN_HOUR_AGO = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    (tmp_path / "log.jsonl.1").write_bytes(line(AN_HOUR_AGO, "queued", id="worst"))
    path.write_bytes(line(AN_HOUR_AGO))
    return path


def test_text_on_the_screen_counts_the_rotated_file_too(log: Path) -> None:
    said = run("report", "--log", str(log))

    assert (said.returncode, said.stderr) == (0, "")
    assert "2 requests: 1 normal, 1 slow, 0 could not be judged\n" in said.stdout
    assert "slowtok explain worst" in said.stdout


@pytest.mark.parametrize("options", [("--format", "json"), ("--json",)])
def test_json(log: Path, options: tuple[str, ...]) -> None:
    found = json.loads(run("report", "--log", str(log), "--since", "7d", *options).stdout)

    assert (found["event"], found["schema"], found["requests"]) == ("report", 1, 2)
    assert found["fix_first"]["cause"] == "queued"


@pytest.mark.parametrize("form", ["text", "html"])
def test_what_was_asked_for_is_said(log: Path, form: str) -> None:
    said = run(
        "report", "--log", str(log), "--format", form, "--model", "none", "--cause", "queued"
    )

    assert "Only requests with model none, cause queued." in said.stdout
    assert "No request in this time." in said.stdout


@pytest.mark.parametrize("form", ["text", "html"])
def test_a_file_is_its_owners_own(log: Path, tmp_path: Path, form: str) -> None:
    output = tmp_path / "report.out"
    said = run("report", "--log", str(log), "--format", form, "--output", str(output))

    assert (said.returncode, said.stdout) == (0, "")
    assert "queued" in output.read_text("utf-8")
    assert "\x1b" not in output.read_text("utf-8")
    if sys.platform != "win32":
        assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_what_cannot_be_done_is_one_line(log: Path, tmp_path: Path) -> None:
    none, foreign = tmp_path / "none.jsonl", tmp_path / "notes.txt"
    foreign.write_text("some\nnotes\n", "utf-8")
    cases = {
        ("--log", str(none)): (3, f"no log at {none}"),
        ("--log", str(log), "--since", "soon"): (2, "--since 'soon': expected a length"),
        ("--log", str(log), "--since", "2099-01-01"): (
            2,
            "--since '2099-01-01' is not in the past",
        ),
        ("--log", str(log), "--since", "2026-11-24", "--until", "2026-11-23"): (
            2,
            "--since '2026-11-24' is not before --until '2026-11-23'",
        ),
        ("--log", "-"): (2, "goes to standard output"),
        ("--log", str(log), "--output", "/none/a"): (2, "--output /none/a: no such folder"),
        ("--log", str(foreign)): (1, f"no line of {foreign} is a slowtok record (2 lines read)"),
    }
    for arguments, (code, reason) in cases.items():
        said = run("report", *arguments)
        assert (said.returncode, said.stdout) == (code, ""), (arguments, said.stderr)
        assert reason in said.stderr
        assert said.stderr.count("\n") == 1
