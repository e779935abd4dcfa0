"""Whose log and state a command reads, where nobody named them."""

import json
import sys
from pathlib import Path

import pytest

from fakes.commands import run, served
from fakes.upstream import Upstream
from slowtok.config.settings import SettingsError, load
from slowtok.proxy.cli import running_proxy
from slowtok.proxy.cli.running_proxy import Running

NOBODY = "127.0.0.1:9"
MODEL = ("--params", "8.03", "--quant", "Q4_K_M", "--layers", "32", "--kv-heads", "8",
         "--head-dim", "128")  # fmt: skip
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")


def at(log: Path | None) -> Running:
    return Running(address="127.0.0.1:4141", state_dir="/private", log=log, upstream=())


def test_nobody_runs(capsys: pytest.CaptureFixture[str]) -> None:
    usual = load({"listen": NOBODY}, {})

    assert running_proxy.running_at(usual) is None
    assert running_proxy.log_of(usual) == usual.log_path
    said = capsys.readouterr().err
    assert said.startswith(f"log: {usual.log_path} (no slowtok answers at {NOBODY}")
    assert running_proxy.with_state_of(usual, None) is usual


@pytest.mark.parametrize("named", [{"log": "/my/log"}, {"state_dir": "/my"}])
def test_what_was_named_wins(named: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_proxy, "running_at", lambda _: at(Path("/private/log")))
    settings = load(named, {})

    assert running_proxy.log_of(settings) == settings.log_path


def test_log_of_the_one_that_runs_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running_proxy, "running_at", lambda _: at(Path("/private/log")))

    assert running_proxy.log_of(load({}, {})) == Path("/private/log")
    assert capsys.readouterr().err == "log: /private/log (of the slowtok at 127.0.0.1:4141)\n"


def test_log_of_the_one_that_runs_may_be_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_proxy, "running_at", lambda _: at(None))

    with pytest.raises(SettingsError, match=r"slowtok at .* goes to standard output"):
        running_proxy.log_of(load({}, {}))


@POSIX
async def test_commands_find_what_a_private_slowtok_keeps(engine: Upstream, tmp_path: Path) -> None:
    private, home = tmp_path / "private", {"XDG_STATE_HOME": str(tmp_path / "home")}
    async with served(private, "--upstream", f"big={engine.url}") as proxy:
        listen = ("--listen", await proxy.address())
        report = run("report", *listen, env=home)
        tail = run("tail", "--no-follow", *listen, env=home)
        doctor = run("doctor", *listen, env=home)

    whose = f"(of the slowtok at {listen[1]})\n"
    assert (report.returncode, tail.returncode) == (0, 0), (report.stderr, tail.stderr)
    assert report.stderr == f"log: {private / 'log.jsonl'} {whose}"
    assert tail.stderr == f"{report.stderr}no request in {private / 'log.jsonl'} yet\n"
    assert f"engines: big={engine.url} {whose}" in doctor.stderr
    assert f"at {engine.url}" in " ".join(doctor.stdout.split())


async def test_the_bandwidth_that_it_uses_is_told(engine: Upstream, tmp_path: Path) -> None:
    """`fit` takes it although this command's own state directory has none."""
    other = tmp_path / "other"
    async with served(tmp_path / "private", "--upstream", engine.url) as proxy:
        listen = await proxy.address()
        told = running_proxy.running_at(load({"listen": listen}, {}))
        here = ("--listen", listen, "--state-dir", str(other), "--json")
        fit = json.loads(run("fit", *MODEL, *here).stdout)
        doctor = json.loads(run("doctor", *here).stdout)
    alone = json.loads(run("fit", *MODEL, "--listen", NOBODY, *here[2:]).stdout)

    assert told is not None
    assert told.ram_bytes_per_s == 2e10
    assert doctor["machine"]["ram_bandwidth_bytes_per_s"] == 2e10
    if not doctor["gpus"]:
        assert fit["basis"] != alone["basis"]
