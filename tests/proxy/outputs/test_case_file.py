"""Case files: what is written is read again, and what is no case is named with its reason."""

import io
import os
import re
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cases import FIRING, healthy, with_device, with_gpu, with_timeline
from fakes.records import full_case
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.case.machine import GpuFacts
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs import case_file
from slowtok.proxy.outputs.case_file import (
    BadCase,
    RecordedCase,
    Recorder,
    dump_case,
    parse_case,
    read_cases,
)

BINARY = r"not UTF-8 text; is it compressed\?"
RECORD = {"verdict": "slow"}
LINE = dump_case(healthy(), RECORD, "0.1.0")


def raw(**changes: Any) -> dict[str, Any]:
    """A case as plain values, with these members instead."""
    return {**orjson.loads(LINE), **changes}


def read(content: bytes) -> list[RecordedCase | BadCase]:
    return list(read_cases(io.BytesIO(content)))


def reasons(content: bytes) -> list[tuple[int | None, str]]:
    """What could not be read, with its line."""
    return [(one.line, one.reason) for one in read(content) if isinstance(one, BadCase)]


def cases() -> list[Case]:
    facts = GpuFacts(index=0, name="a", absent={"dram_busy_ratio": "needs Hopper"})
    busy = replace(with_gpu(full_case()), activity=EngineActivity(span_s=1.0, alone=True))
    blind = Case(timeline=healthy().timeline, phases=healthy().phases)
    return [
        full_case(),
        blind,
        with_device(busy, gpus=(facts,)),
        *(make() for make in FIRING.values()),
    ]


def test_what_was_written_is_read_again() -> None:
    for case in cases():
        found = parse_case(dump_case(case, RECORD, "0.1.0"))

        assert found == RecordedCase(case=case, record=RECORD, slowtok="0.1.0")


@pytest.mark.parametrize(
    "recorded", [None, 5, [], {}, {"slowtok": 1, "record": "x"}, {"record": None}]
)
def test_bare_case_and_odd_word_on_what_was_recorded(recorded: Any) -> None:
    assert parse_case(orjson.dumps(raw(recorded=recorded))) == RecordedCase(case=healthy())
    assert parse_case(orjson.dumps(healthy())) == RecordedCase(case=healthy())


def test_one_case_over_many_lines() -> None:
    pretty = orjson.dumps(healthy(), option=orjson.OPT_INDENT_2)

    assert read(pretty) == [RecordedCase(case=healthy())]
    assert read(b"\xef\xbb\xbf" + pretty) == [RecordedCase(case=healthy())]


def test_one_case_a_line_whatever_stands_between() -> None:
    found = read(LINE + b"\r\n  \nrubbish\n" + LINE.rstrip())

    assert [one.line for one in found] == [1, 4, 5]
    assert [isinstance(one, RecordedCase) for one in found] == [True, False, True]


def test_unknown_fields_are_left_out_and_named_once() -> None:
    newer = orjson.loads(orjson.dumps(full_case()))
    newer["weather"] = {"rain_mm": 1}
    newer["server"]["colour"] = "red"
    for sample in newer["host"]:
        sample["moon"] = 1
    found = parse_case(orjson.dumps(newer))

    assert found.case == full_case()
    assert found.unknown == ("host[].moon", "server.colour", "weather")


def test_fields_that_were_given_up_can_still_be_read() -> None:
    older = orjson.loads(orjson.dumps(full_case()))
    older["history"]["slow_recently"] = 1
    found = parse_case(orjson.dumps(older))

    assert found.case == full_case()
    assert found.unknown == ("history.slow_recently",)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        (b"", None, "it is empty"),
        (b"\n \n", None, "it is empty"),
        (b"\x1f\x8b\x08\x00\x00\x00", None, BINARY),
        (b"GGUF\x03\x00\x00\x00{}", None, BINARY),
        ("{}".encode("utf-16"), None, BINARY),
        (LINE[:-40], 1, "not JSON, or cut short: .* at column [0-9]+"),
        (b'{\n "schema": 1,\n', None, "not JSON, or cut short: .* at line [0-9], column [0-9]+"),
        (b"[" * 5000, None, "not JSON, or cut short: .*depth.*"),
        (b"5", 1, "expected a JSON object"),
        (b"[]", 1, "expected a JSON object"),
        (b"{}", 1, "not a case file: it has no `schema`"),
        (b'{"event":"request","schema":1}', 1, "a line of the log, not a case; .*"),
    ],
)
def test_what_is_no_case(content: bytes, line: int | None, reason: str) -> None:
    [(at, said)] = reasons(content)

    assert at == line
    assert re.fullmatch(reason, said), said


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": 2}, "schema 2 is of a newer slowtok; this one reads schema 1"),
        ({"schema": 0}, "schema 0 is not known; this one reads schema 1"),
        ({"schema": True}, "schema True is not known; this one reads schema 1"),
        ({"schema": "1" * 99}, f"schema {'1' * 20} is not known; this one reads schema 1"),
        ({"timeline": None}, "timeline: input should be a dictionary .*"),
        ({"timeline": {}}, r"timeline\.request_id: field required \(and 4 more\)"),
        ({"neighbours": {"decode_mean": "x"}}, r"neighbours\.decode_mean: input .*number.*"),
        ({"host": [{"at_s": 1, "span_s": "x"}]}, r"host\[0\]\.span_s: .*number.*"),
        ({"host": 5}, r"host: input should be a valid tuple"),
        ({"phases": {"source": "guess", "total_s": 1}}, r"phases\.source: .*'engine'.*"),
        ({"model": {"layers": 1.5}}, r"model\.layers: .*integer.*"),
    ],
)
def test_value_that_cannot_be_is_named(changes: dict[str, Any], reason: str) -> None:
    [(_, said)] = reasons(orjson.dumps(raw(**changes)))

    assert re.fullmatch(reason, said), said


def test_file_that_holds_no_case_is_given_up_early() -> None:
    found = reasons(b"a line of prose\n" * 1000)

    assert len(found) == case_file.MAX_BAD_LINES + 1
    assert found[-1] == (5, "no case in 5 lines: the rest was not read")


def test_bad_lines_among_cases_are_all_named() -> None:
    assert len(reasons(LINE + b"rubbish\n" * 20 + LINE)) == 20


@pytest.mark.parametrize("content", [b"x" * 3000, b"{\n" + b" " * 3000 + b"}"])
def test_what_is_too_large_is_not_read_whole(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_file, "MAX_CASE_BYTES", 2 * 2**10)

    assert [reason for _, reason in reasons(content)] == [
        "larger than 0 MiB, so it is not a case file"
    ]


def test_line_that_is_too_long_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_file, "MAX_CASE_BYTES", len(LINE))
    found = read(LINE + b"x" * 5 * len(LINE) + b"\n" + LINE)

    assert [(one.line, isinstance(one, RecordedCase)) for one in found] == [
        (1, True),
        (2, False),
        (3, True),
    ]


@given(st.binary(max_size=300))
def test_no_bytes_can_raise(content: bytes) -> None:
    read(content)


@given(st.integers(0, len(LINE) - 2))
def test_every_cut_is_named(length: int) -> None:
    assert all(isinstance(one, BadCase) for one in read(LINE[:length]))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(raw())), JSON_VALUES)
def test_no_value_can_raise(member: str, value: Any) -> None:
    content = orjson.dumps(raw(**{member: value}), option=orjson.OPT_NON_STR_KEYS)

    assert len(read(content)) == 1


def recorded(directory: Path, *, judged: bool = True) -> Recorder:
    recorder = Recorder(directory)
    recorder(healthy(), diagnose(healthy()) if judged else None, {"verdict": "normal"})
    recorder.writer.close()
    return recorder


def test_case_is_written_whole(tmp_path: Path) -> None:
    recorded(tmp_path / "cases")

    [path] = (tmp_path / "cases").iterdir()
    assert path.name == f"{healthy().timeline.request_id}.json"
    written = orjson.loads(path.read_bytes())
    told = written.pop("recorded")
    assert written == orjson.loads(orjson.dumps(asdict(healthy())))
    assert written["schema"] == 1
    assert told == {"slowtok": version("slowtok"), "record": {"verdict": "normal"}}
    assert parse_case(path.read_bytes()).case == healthy()


def test_what_merely_passed_is_not_recorded(tmp_path: Path) -> None:
    recorded(tmp_path, judged=False)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    recorded(tmp_path / "cases")

    [path] = (tmp_path / "cases").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_directory_that_went_away_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "cases")
    (tmp_path / "cases").rmdir()
    recorder(healthy(), diagnose(healthy()), {})
    recorder.writer.close()

    assert recorder.writer.failed == 1


def test_directory_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        Recorder(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_directory_that_takes_no_files_is_an_error_at_once() -> None:
    with pytest.raises(OSError, match="/proc"):
        Recorder(Path("/proc"))


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_full_disk_is_counted_and_leaves_no_half_case(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the same place."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from fakes.cases import healthy\n"
        "from slowtok.detectors.diagnosis.diagnose import diagnose\n"
        "from slowtok.proxy.outputs.case_file import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "recorder(healthy(), diagnose(healthy()), {}); recorder.writer.close()\n"
        "print(recorder.writer.failed)\n"
    )
    tests = str(Path(__file__).resolve().parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ended.stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_case_of_the_same_name_is_never_written_over(tmp_path: Path) -> None:
    recorded(tmp_path)
    [path] = tmp_path.iterdir()
    before = path.read_bytes()
    recorder = Recorder(tmp_path)
    recorder(with_timeline(healthy(), model="other"), diagnose(healthy()), {})
    recorder.writer.close()

    assert (recorder.writer.failed, path.read_bytes()) == (1, before)
