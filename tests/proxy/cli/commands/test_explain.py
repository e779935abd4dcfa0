"""`slowtok explain`: one request, from the running proxy or from its log."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import FIRING, healthy, with_timeline
from fakes.commands import run
from fakes.wire import JSON, reply
from slowtok.config.settings import Settings, load
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.cli.commands import explain
from slowtok.proxy.cli.commands.explain import run_explain
from slowtok.proxy.outputs.record import make_record

NOBODY = "127.0.0.1:9"


def record(name: str, cause: str | None = None, *, judged: bool = True) -> dict[str, Any]:
    case = with_timeline(FIRING[cause]() if cause else healthy(), request_id=name)
    return make_record(case, diagnose(case) if judged else None)


def settings(log: Path, *, listen: str = NOBODY, **more: Any) -> Settings:
    return load({"log": str(log), "listen": listen, **more}, {})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    entries = [record("old", "queued"), record("new"), record("page", judged=False)]
    path.write_text("garbage\n[]\n" + "".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the usual log is looked for, if none is named."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def usual(log: Path, home: Path) -> Path:
    """The same log at its usual place, which nobody has to name."""
    place = load({}, {}).log_path
    assert place is not None
    assert place.is_relative_to(home)
    place.parent.mkdir(parents=True)
    return log.rename(place)


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Somebody at a port who gives one answer; yields the address and what was asked."""
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is shut at the end
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def as_json(value: Any) -> bytes:
    return reply(json.dumps(value).encode(), JSON, "Connection: close")


def test_newest_diagnosed_one_of_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(settings(log), None) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("  new")


def test_one_by_its_id(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(settings(log), "old") == 0

    said = capsys.readouterr().out
    assert said.startswith("SLOW, QUEUE\n")
    assert "Remedy: Start llama-server with --parallel 4" in said


def test_one_that_merely_passed_by_its_id(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(settings(log), "page") == 0
    assert capsys.readouterr().out.startswith("NO VERDICT\n")


def test_json_is_the_record(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(settings(log, json=True), "old") == 0
    assert json.loads(capsys.readouterr().out) == record("old", "queued")


@pytest.mark.parametrize(
    ("request_id", "what"),
    [("nope\x1b", "no request with id nope?"), (None, "no diagnosed request")],
)
def test_unknown(
    request_id: str | None, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "none.jsonl"
    empty.touch()

    assert run_explain(settings(empty), request_id) == 1
    hint = "; a short id is the last 8 characters of one, or more" if request_id else ""
    assert capsys.readouterr().err == f"slowtok: {what} in {empty}{hint}\n"


def test_neither_a_slowtok_nor_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.jsonl"

    assert run_explain(settings(missing), None) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"slowtok: there is no log at {missing}; ")


def test_neither_a_slowtok_nor_its_log(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain(load({"listen": NOBODY}, {}), None) == 3
    said = capsys.readouterr().err
    nobody = f"slowtok: no slowtok answers at {NOBODY}"
    assert said.startswith(f"{nobody}, and there is no log at {home}")


@pytest.mark.parametrize("named", ["log", "state_dir"])
def test_a_log_that_was_named_wins_over_a_slowtok_that_runs(
    named: str, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(explain, "read_page", lambda *_: [record("fresh")])
    given = {"log": str(log), "state_dir": str(log.parent)}

    assert run_explain(load({named: given[named]}, {}), None) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("  new")


def test_no_engine_is_said_in_words_with_what_to_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = {"event": "request", "id": "gone", "verdict": "unknown", "ended": "no-engine"}
    more = {"ts": "2026-11-20T10:00:00.000+00:00", "path": "/v1/x", "status": 502}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({**nobody, **more, "upstream": {"kind": "unknown"}}) + "\n", "utf-8")

    assert run_explain(settings(log), "gone") == 0
    said = capsys.readouterr().out
    assert "no model named, no engine" in said
    assert "What to do: start llama-server, vLLM or Ollama" in said
    assert "?" not in said


def test_file_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("not\na log\n", "utf-8")

    assert run_explain(settings(foreign), None) == 1
    assert "is a slowtok record (2 lines read)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd", [{"ts": None}, {"findings": [{"cause": "queued"}]}, {"timing": {"total_ms": "long"}}]
)
def test_a_record_of_another_shape(
    odd: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(record("odd") | odd) + "\n", "utf-8")

    assert run_explain(settings(log), "odd") == 1
    assert "--json shows it" in capsys.readouterr().err
    assert run_explain(settings(log, json=True), "odd") == 0


def test_one_by_the_end_of_its_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    name = "0199f3c2-0000-7000-8000-0000deadbeef"
    log.write_text(json.dumps(record(name)) + "\n", "utf-8")

    assert run_explain(settings(log), "deadbeef") == 0
    assert run_explain(settings(log), "beef") == 1, "too short to be sure"
    assert name in capsys.readouterr().out


@pytest.mark.usefixtures("usual")
def test_running_proxy_knows_better_than_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [record("page", judged=False), record("fresh"), record("new")]
    with answering(as_json(listed)) as (listen, asked):
        assert run_explain(load({"listen": listen}, {}), None) == 0

    assert asked[0].startswith(b"GET /slowtok/requests HTTP/1.1\r\n")
    assert capsys.readouterr().out.splitlines()[2].endswith("  fresh")


@pytest.mark.usefixtures("usual")
def test_id_is_asked_for_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(as_json(record("a/../b c"))) as (listen, asked):
        assert run_explain(load({"listen": listen}, {}), "a/../b c") == 0

    assert asked[0].startswith(b"GET /slowtok/requests/a%2F..%2Fb%20c HTTP/1.1\r\n")
    assert "a/../b c" in capsys.readouterr().out


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[",
        reply(b"<html>", "Content-Type: text/html"),
        as_json({"error": "not found"}),
        as_json(["x", 5, None]),
        as_json({"event": "request", "id": "other", "verdict": "slow"}),
        reply(b"{}", JSON, "Connection: close", status="404 Not Found"),
    ],
)
def test_somebody_else_at_the_port_is_not_believed(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as (listen, _):
        assert run_explain(load({"listen": listen}, {}), "old") == 0

    assert capsys.readouterr().out.startswith("SLOW, QUEUE\n")


@pytest.mark.usefixtures("usual")
def test_wildcard_address_is_asked_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(as_json([record("fresh")])) as (address, _):
        listen = address.replace("127.0.0.1", "0.0.0.0")
        assert run_explain(load({"listen": listen}, {}), None) == 0

    assert "  fresh" in capsys.readouterr().out


def test_command(log: Path) -> None:
    ended = run("explain", "old", "--log", str(log), "--listen", NOBODY)
    unknown = run("explain", "nope", "--log", str(log), "--listen", NOBODY)

    assert (ended.returncode, unknown.returncode) == (0, 1)
    assert ended.stdout.startswith("SLOW, QUEUE\n")
    assert ended.stderr == ""
    assert unknown.stdout == ""
