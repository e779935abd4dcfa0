"""`slowtok tail`: what it reads, and what it prints."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import FIRING, healthy, with_timeline
from fakes.commands import SLOWTOK, WAIT_S, environment, run, started
from fakes.logged_runs import NAME, two_runs
from slowtok.config.settings import SettingsError, load
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.commands import tail
from slowtok.proxy.cli.report.choice import Choice
from slowtok.proxy.outputs.record import make_record

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes are POSIX")


def line(name: str, cause: str | None = None, **changes: Any) -> str:
    """The log's line of a request with this id."""
    case = with_timeline(FIRING[cause]() if cause else healthy(), request_id=name, **changes)
    return json.dumps(make_record(case, diagnose(case))) + "\n"


def passed(name: str, status: int = 200) -> str:
    """The line of a request that merely passed."""
    case = with_timeline(healthy(), request_id=name, status=status)
    return json.dumps(make_record(case, None)) + "\n"


EVENT = '{"event":"engine-found","ts":"2026-01-01T00:00:00Z"}\n'
GARBAGE = (
    "not json\n",
    "\n",
    "[1, 2]\n",
    '"request"\n',
    '{"event":"request"}\n',
    '{"event":"request","verdict":"slow","ts":"yesterday","id":1}\n',
    '{"event":"request","verdict":"slow","ts":"2026-01-01T00:00:00Z","id":"x","tokens":5}\n',
    "\udcff\n",
)


def printed(
    log: Path, capsys: pytest.CaptureFixture[str], *, last: int = 10, **settings: Any
) -> list[str]:
    """What it prints of a log that nobody writes any more."""
    code = tail.run_tail(load({"log": str(log), **settings}, {}), last=last, follow=False)
    assert code == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def write(log: Path, *lines: str) -> None:
    with log.open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(lines)


def test_readable_lines(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log, EVENT, line("first"), line("second", "queued"))
    shown = printed(log, capsys)

    assert [text.split()[-1] for text in shown] == ["first", "second"]
    assert "queued 0.95 lost 2.5 s" in shown[1]


CHOICES = [
    (Choice(slow=True), ["night-2"]),
    (Choice(run=NAME), ["night-1", "night-2"]),
    (Choice(run="a" * 16), ["older-1"]),
    (Choice(cause="queued"), ["night-2"]),
    (Choice(model="another"), []),
    (Choice(run=NAME, slow=True, cause="queued"), ["night-2"]),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
@pytest.mark.parametrize("as_json", [False, True], ids=["readable", "json"])
def test_only_those_that_are_meant(
    choice: Choice,
    expected: list[str],
    as_json: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = two_runs(tmp_path)
    settings = load({"log": str(log), "json": as_json}, {})
    assert tail.run_tail(settings, choice, last=10, follow=False) == 0
    shown = capsys.readouterr()

    ids = [
        json.loads(text)["id"] if as_json else text.split()[-1] for text in shown.out.splitlines()
    ]
    assert ids == expected
    assert shown.err == ("" if expected else f"no such request in {log} yet\n")


def test_odd_lines_are_of_no_choice(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log, *GARBAGE[1:-1])
    for choice in (Choice(cause="queued"), Choice(run="r" * 16), Choice(model="m")):
        assert tail.run_tail(load({"log": str(log)}, {}), choice, last=10, follow=False) == 0
    assert capsys.readouterr().out == ""


def test_last_ones_of_what_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log, line("a"), line("b"), passed("page"), line("c"), passed("page"), EVENT)

    assert [text.split()[-1] for text in printed(log, capsys, last=2)] == ["b", "c"]
    assert printed(log, capsys, last=0) == []


def test_failed_request_is_shown_though_it_merely_passed(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(log, passed("broken", status=502))

    assert "502" in printed(log, capsys)[0]


def test_json_lines_are_the_logs_own(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line("a"), passed("page")]
    write(log, lines[0], EVENT, GARBAGE[0], lines[1])

    assert printed(log, capsys, json=True) == [text.rstrip() for text in lines]


def test_garbage_is_passed_over(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log, *GARBAGE, line("good"), *GARBAGE)

    assert [text.split()[-1] for text in printed(log, capsys)] == ["good"]


@pytest.mark.parametrize(
    ("content", "count"), [(b"\x7fELF\x00\n\xff\n", "2 lines"), (b"\x7fELF", "0 lines")]
)
def test_file_of_another_kind(
    content: bytes, count: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(content)

    assert tail.run_tail(load({"log": str(log)}, {}), last=1, follow=False) == 1
    said = f"slowtok: no line of {log} is a slowtok record ({count} read)\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("content", ["", EVENT, '{"event":"requ'])
def test_log_without_a_request_is_no_error(
    content: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(log, content)

    assert printed(log, capsys) == []


def test_line_that_is_still_being_written_is_not_shown(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(log, line("a"), line("b")[:-20])

    assert len(printed(log, capsys)) == 1


def test_no_log_yet(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tail.run_tail(load({"log": str(log)}, {}), last=1, follow=True) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"slowtok: there is no log at {log}; `slowtok serve` writes one; ")


def test_log_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tail.run_tail(load({"log": str(tmp_path)}, {}), last=1, follow=False) == 1
    assert capsys.readouterr().err == f"slowtok: {tmp_path}: Is a directory\n"


def test_standard_output_cannot_be_followed() -> None:
    with pytest.raises(SettingsError, match="goes to standard output"):
        tail.run_tail(load({"log": "-"}, {}), last=1, follow=False)


class Follower:
    """Reads a log as `tail` does, as far as it goes for now."""

    def __init__(self, log: Path) -> None:
        self._lines: Iterator[bytes | None] = tail._lines(log)

    def new(self) -> list[str]:
        found = []
        while (text := next(self._lines)) is not None:
            found.append(text.decode())
        return found


def test_follows_what_is_appended(log: Path) -> None:
    follower = Follower(log)
    assert follower.new() == [], "there is no file yet"

    write(log, "one\n")
    assert follower.new() == ["one\n"]
    write(log, "two\nthr")
    assert follower.new() == ["two\n"]
    write(log, "ee\n")
    assert follower.new() == ["three\n"]
    assert follower.new() == []


def test_follows_a_rotated_log_without_a_gap(log: Path) -> None:
    write(log, "one\n")
    follower = Follower(log)
    assert follower.new() == ["one\n"]

    write(log, "two\n")  # comes just before the rotation
    log.rename(log.with_suffix(".1"))
    write(log, "three\n")

    assert follower.new() == ["two\n", "three\n"]


def test_waits_for_a_log_that_was_moved_away(log: Path) -> None:
    write(log, "one\n")
    follower = Follower(log)
    follower.new()
    log.rename(log.with_suffix(".1"))
    assert follower.new() == []

    write(log, "two\n")
    assert follower.new() == ["two\n"]


def test_follows_a_log_that_was_cut(log: Path) -> None:
    write(log, "one\n", "two\n")
    follower = Follower(log)
    follower.new()
    log.write_text("new\n")

    assert follower.new() == ["new\n"]


@POSIX
async def test_follows_until_ctrl_c(log: Path) -> None:
    write(log, line("first"), line("second"))
    async with started("tail", "-n", "1", "--log", str(log)) as running:
        assert (await running.line()).endswith("second")
        write(log, EVENT, line("third"))
        assert (await running.line()).endswith("third")
        code = await running.end(signal.SIGINT, group=True)

    assert code == 0
    assert running.err == [""]


@POSIX
def test_reader_that_has_seen_enough_is_no_error(log: Path) -> None:
    write(log, *(line(f"request-{i}") for i in range(2000)))
    command = [*SLOWTOK, "tail", "--no-follow", "-n", "2000", "--log", str(log)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert b"request-0" in reader.stdout.readline()
        reader.stdout.close()

        assert reader.wait(WAIT_S) == 0
        assert reader.stderr.read() == b""


@POSIX
def test_reader_that_has_gone_ends_it_though_nothing_comes(log: Path) -> None:
    write(log, line("only"))
    command = [*SLOWTOK, "tail", "--follow", "--log", str(log)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert b"only" in reader.stdout.readline()
        reader.stdout.close()

        assert reader.wait(WAIT_S) == 0
        assert reader.stderr.read() == b""


def test_command_reads_the_settings(log: Path) -> None:
    write(log, line("only"))
    ended = run("tail", "--no-follow", "--json", env={"SLOWTOK_LOG": str(log)})

    assert ended.returncode == 0
    assert json.loads(ended.stdout)["id"] == "only"


def test_command_says_what_is_wrong_in_one_line() -> None:
    ended = run("tail", "--log", "-")

    assert ended.returncode == 2
    assert ended.stderr == (
        "slowtok: log = '-' (from arguments): the log goes to standard output and cannot be read "
        "again; name a file with --log\n"
    )


@pytest.mark.parametrize("command", [("tail", "--no-follow"), ("report",)])
@pytest.mark.parametrize(
    ("cause", "hint"),
    [("host-contenton", "did you mean host-contention?"), ("x", "docs/causes.md lists them all")],
)
def test_cause_that_does_not_exist_is_refused(
    command: tuple[str, ...], cause: str, hint: str
) -> None:
    ended = run(*command, "--cause", cause)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"slowtok: --cause {cause}: no cause has this name; {hint}\n"


def test_says_where_there_is_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(log, EVENT)

    assert tail.run_tail(load({"log": str(log)}, {}), last=1, follow=False) == 0
    assert capsys.readouterr() == ("", f"no request in {log} yet\n")
