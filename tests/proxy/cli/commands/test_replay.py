"""`slowtok replay`: what it reads, what it says changed, and how it ends."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import FIRING, healthy, with_envelope, with_timeline
from fakes.commands import SLOWTOK, WAIT_S, environment, run
from slowtok.config.settings import load
from slowtok.detectors.case.case import Baseline, Case
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.commands.replay import run_replay
from slowtok.proxy.outputs.case_file import dump_case
from slowtok.proxy.outputs.record import make_record

SLOW = {"verdict": "slow", "phase": "decode"}


def line(name: str, cause: str | None = None, *, was: dict[str, Any] | None = None) -> bytes:
    """The case file of a request with this id; `was` changes what was recorded of it."""
    case = with_timeline(FIRING[cause]() if cause else healthy(), request_id=name)
    return of_case(case, was=was)


def of_case(case: Case, *, was: dict[str, Any] | None = None) -> bytes:
    return dump_case(case, {**make_record(case, diagnose(case)), **(was or {})}, "0.1.0")


def replayed(
    capsys: pytest.CaptureFixture[str], *paths: Path | str, again: bool = False, **settings: Any
) -> tuple[int, list[str], list[str]]:
    """Exit code, and the lines of standard output and standard error."""
    names = [str(path) for path in paths]
    code = run_replay(load(settings, {}), names, expect_again=again)
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err.splitlines()


def records(capsys: pytest.CaptureFixture[str], *paths: Path, **more: Any) -> list[dict[str, Any]]:
    _, out, _ = replayed(capsys, *paths, json=True, **more)
    return [json.loads(text) for text in out]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three cases in two files, beside a file that is none."""
    cases = tmp_path / "cases"
    cases.mkdir()
    (cases / "b.jsonl").write_bytes(line("changed", was=SLOW) + line("queued", "queued"))
    (cases / "a.json").write_bytes(line("same"))
    (cases / "notes.txt").write_text("not a case")
    return cases


def test_each_case_is_a_line_with_what_changed(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = replayed(capsys, directory)

    assert (code, err) == (0, [])
    assert out == [
        "same  smollm2  149.2/s  normal  (as recorded)",
        (
            "changed  smollm2  149.2/s  slow decode cause not visible -> normal"
            "  (changed: verdict, phase)"
        ),
        "queued  smollm2  149.2/s  slow queue queued  (as recorded)",
        "3 cases, 1 changed",
    ]


def test_one_case_is_explained_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(line("one", "queued"))
    code, out, _ = replayed(capsys, path)

    assert code == 0
    assert out[:3] == ["one  smollm2  149.2/s  slow queue queued  (as recorded)", "", "SLOW, QUEUE"]
    assert any(text.startswith("  Remedy: Start llama-server with --parallel 4") for text in out)


def test_json_is_the_record_and_what_changed(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, changed, queued = records(capsys, directory)

    case = with_timeline(healthy(), request_id="same")
    assert same.pop("replay") == {
        "recorded_by": "0.1.0",
        "was": {"verdict": "normal", "causes": []},
        "changed": [],
    }
    assert same == json.loads(json.dumps(make_record(case, diagnose(case))))
    assert changed["replay"]["was"] == {**SLOW, "causes": []}
    assert changed["replay"]["changed"] == ["verdict", "phase"]
    assert queued["replay"]["was"]["causes"] == ["queued"]


def test_file_that_does_not_tell_what_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = json.loads(line("bare"))
    del bare["recorded"]
    (tmp_path / "bare.json").write_text(json.dumps(bare))

    assert replayed(capsys, tmp_path)[1][0] == "bare  smollm2  149.2/s  not recorded -> normal"
    assert records(capsys, tmp_path)[0]["replay"] == {}


def test_recorded_expectation_counts_unless_it_is_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = with_envelope(healthy(), basis="what was believed then")
    (tmp_path / "a.json").write_bytes(of_case(replace(judged, baseline=Baseline(count=2))))
    [kept] = records(capsys, tmp_path)
    [fresh] = records(capsys, tmp_path, again=True)

    assert kept["expected"]["basis"] == "what was believed then"
    assert kept["replay"]["changed"] == []
    assert fresh["expected"]["basis"].startswith("roofline, weights 87.7 MiB")
    assert fresh["replay"]["expected_again"] is True
    assert "expected" in fresh["replay"]["changed"]


def test_disabled_cause_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_bytes(line("a", "queued"))
    [found] = records(capsys, tmp_path, disable=["queued"])

    assert found["findings"] == []
    assert found["verdict"] == "slow"
    assert "findings" in found["replay"]["changed"]


def test_what_cannot_be_read_is_named_and_the_rest_is_done(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "c.jsonl").write_bytes(line("first") + line("cut")[:-60] + b"\n" + line("last"))
    (tmp_path / "empty").mkdir()
    missing = tmp_path / "missing.json"
    code, out, err = replayed(capsys, directory / "c.jsonl", missing, tmp_path / "empty")

    assert code == 1
    assert [text.split()[0] for text in out] == ["first", "last", "2"]
    assert out[-1] == "2 cases, 0 changed, 3 could not be read"
    assert err[0].startswith(f"slowtok: {directory / 'c.jsonl'}, line 2: not JSON, or cut short:")
    assert err[1:] == [
        f"slowtok: {missing}: No such file or directory",
        f"slowtok: {tmp_path / 'empty'}: no case file (.json, .jsonl) in it",
    ]


def test_values_that_no_request_could_have_cost_only_their_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = with_timeline(healthy(), started_unix_s=1e300)
    content = dump_case(odd, {}, None) + line("good")
    (tmp_path / "a.jsonl").write_bytes(content)
    code, out, err = replayed(capsys, tmp_path)

    assert code == 1
    assert out[0].startswith("good ")
    assert err == [f"slowtok: {tmp_path / 'a.jsonl'}, line 1: cannot be diagnosed: OverflowError"]


def test_fields_of_another_version_are_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = json.loads(line("newer")) | {"weather": "rain"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(newer)}\n" * 3)
    code, out, err = replayed(capsys, tmp_path)

    assert (code, out[-1]) == (0, "3 cases, 0 changed")
    assert err == ["slowtok: left out what slowtok 0.1.0 wrote: weather"]


@pytest.mark.parametrize("findings", [5, "x", [5], [{}], {"cause": 1}])
def test_odd_word_on_what_was_recorded(
    findings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_bytes(line("a", was={"findings": findings, "verdict": [1]}))
    code, out, _ = replayed(capsys, tmp_path)

    assert (code, " -> normal" in out[0]) == (0, True)


def test_case_of_a_stranger_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;evil\x07"
    case = with_timeline(healthy(), request_id=evil, model=evil, path=evil)
    (tmp_path / "a.json").write_bytes(of_case(case, was={"verdict": evil}))
    (tmp_path / "b.json").write_text(json.dumps({"schema": 1, evil: 1}))
    _, out, err = replayed(capsys, tmp_path)

    assert out
    assert all(c.isprintable() for text in (*out, *err) for c in text)


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = io.TextIOWrapper(io.BytesIO(line("a") + b"rubbish\n"))
    monkeypatch.setattr(sys, "stdin", given)
    code, out, err = replayed(capsys, "-")

    assert code == 1
    assert out[0].startswith("a ")
    assert err[0].startswith("slowtok: standard input, line 2: not JSON")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may read it all")
def test_directory_that_may_not_be_read(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.chmod(0)
    code, _, err = replayed(capsys, directory)
    directory.chmod(0o700)

    assert (code, err) == (1, [f"slowtok: {directory}: Permission denied"])


def test_command(directory: Path) -> None:
    whole = run("replay", str(directory))
    piped = subprocess.run(
        [*SLOWTOK, "replay", "--json", "-"],
        input=line("piped"),
        capture_output=True,
        timeout=WAIT_S,
        check=True,
        env=environment(),
    )
    again = run("replay", "--expect-again", str(directory / "a.json"))
    disabled = run("replay", str(directory / "b.jsonl"), env={"SLOWTOK_DISABLE": "queued"})
    none = run("replay")

    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.endswith("\n3 cases, 1 changed\n")
    assert json.loads(piped.stdout)["id"] == "piped"
    assert "(changed: expected" in again.stdout
    assert "queued -> slow queue cause not visible" in disabled.stdout
    assert (none.returncode, none.stdout) == (2, "")


def test_file_without_a_case_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("# Notes\n" * 9, "utf-8")

    assert run_replay(load({}, {}), [str(foreign)], expect_again=False) == 1
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith(f"slowtok: {foreign}: there is no case in it (line 1: not JSON")


def test_given_ram_bandwidth_makes_the_expectation_anew(tmp_path: Path) -> None:
    path = tmp_path / "case.jsonl"
    path.write_bytes(line("one"))

    done = run("replay", str(path), "--json", "--ram-bandwidth", "1000")
    record = json.loads(done.stdout)

    assert record["replay"]["expected_again"] is True
    assert "1000 GB/s" in record["expected"]["basis"]
