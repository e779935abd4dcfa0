"""The demo as a user runs it."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from fakes.commands import run
from fakes.running import keep_ram_bandwidth
from slowtok.proxy.cli.demo.scenario import path_of_command, run_demo

LIMIT_S = 400.0  # 40 s on a machine with nothing else to do
END_S = 20.0
ENDINGS = (
    signal.SIGINT,
    pytest.param(signal.SIGTERM, marks=pytest.mark.long),
    pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    signal.SIGKILL,
)


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert run_demo() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "pip install 'slowtok[demo]'" in said.err
    assert said.err.count("\n") == 1


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"

    assert run_demo(model=missing) == 2
    assert capsys.readouterr().err == f"slowtok: --model {missing}: no such file\n"


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"

        assert run_demo(listen=listen) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"slowtok: listen = '{listen}' (from arguments): cannot be used: ")
    assert said.endswith("; --listen HOST:PORT takes another port\n")


def test_a_bad_setting_is_told_before_it_begins() -> None:
    done = run("demo", "--listen", "foo")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slowtok: listen = 'foo' (from arguments): expected HOST:PORT")


@pytest.mark.engine
def test_a_model_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")

    assert run_demo(model=tmp_path / "bad.gguf") == 1
    assert "the engine did not start" in capsys.readouterr().err


@pytest.mark.engine
@pytest.mark.demo
@pytest.mark.engine_speed
def test_the_whole_demo(tmp_path: Path, ram_bytes_per_s: float) -> None:
    """Somebody else's load may disturb single requests, which are then said to be so."""
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with demo(tmp_path, "--json") as running:
        out, err = running.communicate(timeout=LIMIT_S)

    assert running.returncode == 0, err
    assert "\x1b" not in err
    found = json.loads(out)
    assert found["convinces"] is True
    assert len(found["requests"]) == 12
    for request in found["requests"]:
        assert request["record"]["status"] == 200
        assert request["as_expected"] or request["label"] in err


@pytest.mark.engine
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_process_outlives_it(
    tmp_path: Path, ram_bytes_per_s: float, ending: signal.Signals
) -> None:
    keep_ram_bandwidth(tmp_path, ram_bytes_per_s)
    with demo(tmp_path) as running:
        assert running.stdout is not None
        while "Healthy" not in (line := running.stdout.readline()):
            assert line, running.communicate()
        children = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(ending)
        running.communicate(timeout=END_S)

    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=END_S)
    assert alive == []
    assert running.returncode == (-signal.SIGKILL if ending == signal.SIGKILL else 1)


@contextmanager
def demo(state_dir: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `slowtok demo`, kept apart from this process's settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLOWTOK_")}
    with subprocess.Popen(
        [sys.executable, "-m", "slowtok.proxy", "demo", "--state-dir", str(state_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "TMPDIR": str(state_dir)},
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="a command has another name there")
@pytest.mark.parametrize(("is_there", "is_on_path"), [(True, False), (True, True), (False, False)])
def test_command_that_the_shell_does_not_find_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool, is_on_path: bool
) -> None:
    command = tmp_path / "slowtok"
    if is_there:
        command.write_text("#!/bin/sh\n", "utf-8")
        command.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path if is_on_path else tmp_path / "none"))

    assert path_of_command() == (command if is_there and not is_on_path else None)
