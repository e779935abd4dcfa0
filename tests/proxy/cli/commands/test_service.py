"""`slowtok service`, with stand-ins for the systems' programs, which note what they are asked."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.commands import run
from slowtok.config.settings import load
from slowtok.proxy.cli.commands import service as module
from slowtok.proxy.cli.commands.service import run_service, service_of, why_not_as_service
from slowtok.proxy.cli.main import _command_line

MANAGER = {"linux": "systemctl", "darwin": "launchctl", "win32": "schtasks"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")

Manager = Callable[..., Path]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manager:
    """Stands in for one platform's manager, which fails where its words hold one of `refused`."""

    def of(platform: str, *refused: str) -> Path:
        asked = tmp_path / "asked"
        fails = "".join(
            f'case "$*" in *{word}*) echo no bus >&2; exit 5;; esac\n' for word in refused
        )
        program = tmp_path / "bin" / MANAGER[platform]
        program.parent.mkdir(exist_ok=True)
        for path in (program, program.with_name("journalctl")):
            path.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n{fails}', encoding="utf-8")
            path.chmod(0o755)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(module, "holder_of", lambda _: None)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        for name in ("HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA"):
            monkeypatch.setenv(name, str(tmp_path / "home"))
        asked.touch()
        return asked

    return of


def do(action: Any, *options: str, dry: bool = False) -> int:
    return run_service(action, options, {}, load({}, {}), dry)


@pytest.mark.parametrize("platform", MANAGER)
def test_install_writes_the_file_and_starts_it(platform: str, manager: Manager) -> None:
    asked = manager(platform)

    assert do("install", "--upstream", "http://127.0.0.1:9") == 0

    service = service_of(platform, ("--upstream", "http://127.0.0.1:9"))
    assert service.path.read_text(encoding=service.encoding) == service.text
    assert "http://127.0.0.1:9" in service.text
    ran = asked.read_text(encoding="utf-8").splitlines()
    assert ran[-len(service.start) :] == [" ".join(command[1:]) for command in service.start]


@pytest.mark.parametrize("platform", MANAGER)
def test_remove_stops_it_and_leaves_nothing(platform: str, manager: Manager) -> None:
    asked = manager(platform)
    do("install")

    assert do("remove") == 0

    service = service_of(platform, ())
    assert not service.path.exists()
    assert " ".join(service.stop[-1][1:]) in asked.read_text(encoding="utf-8").splitlines()


def test_remove_works_where_it_cannot_be_stopped_and_says_so(
    manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux")
    do("install")
    manager("linux", "disable")

    assert do("remove") == 0
    assert not service_of("linux", ()).path.exists()
    assert (
        "`systemctl --user disable --now slowtok` ended with 5: no bus" in capsys.readouterr().err
    )


def test_installing_again_stops_the_old_one_first(manager: Manager) -> None:
    manager("linux")
    do("install")
    asked = manager("linux")
    before = len(asked.read_text(encoding="utf-8").splitlines())

    assert do("install", "--listen", "127.0.0.1:4242") == 0

    ran = asked.read_text(encoding="utf-8").splitlines()[before:]
    assert ran.index("--user disable --now slowtok") < ran.index("--user enable --now slowtok")
    assert "127.0.0.1:4242" in service_of("linux", ()).path.read_text(encoding="utf-8")


@pytest.mark.parametrize("platform", MANAGER)
def test_dry_run_shows_all_and_does_nothing(
    platform: str, manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = manager(platform)

    assert do("install", dry=True) == 0

    service, said = service_of(platform, ()), capsys.readouterr().out
    assert str(service.path) in said
    assert service.text in said
    assert MANAGER[platform] in said
    assert not service.path.exists()
    assert asked.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("action", ["remove", "status"])
def test_without_a_service_it_says_how_to_get_one(
    action: str, manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = manager("linux")

    assert do(action) == 3
    assert "slowtok service install" in capsys.readouterr().err
    assert asked.read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(("refused", "code"), [((), 0), (("status",), 1)])
def test_status_ends_as_the_manager_does(
    refused: tuple[str, ...], code: int, manager: Manager
) -> None:
    manager("linux")
    do("install")
    manager("linux", *refused)

    assert do("status") == code


def test_without_a_manager_for_this_user_nothing_is_written(
    manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux", "show")

    assert do("install") == 1
    said = capsys.readouterr().err
    assert "no bus" in said
    assert "slowtok serve" in said
    assert not service_of("linux", ()).path.exists()


def test_without_systemd_nothing_is_written(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux")
    monkeypatch.setenv("PATH", "/nowhere")

    assert do("install") == 1
    assert "systemctl is not there; no systemd" in capsys.readouterr().err
    assert not service_of("linux", ()).path.exists()


def test_a_service_that_cannot_be_started_is_shown_and_taken_away_again(
    manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = manager("linux", "enable")

    assert do("install") == 1
    assert "enable --now slowtok` ended with 5" in capsys.readouterr().err
    service = service_of("linux", ())
    assert not service.path.exists()
    ran = asked.read_text(encoding="utf-8").splitlines()
    steps = (service.start[-1], *service.show, *service.stop, *service.forget)
    assert ran[-len(steps) :] == [" ".join(command[1:]) for command in steps]


def test_where_new_options_cannot_be_had_the_old_service_comes_back(
    manager: Manager, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux")
    do("install")
    asked = manager("linux", "enable")

    assert do("install", "--listen", "127.0.0.1:4242") == 1
    assert "before is there again" in capsys.readouterr().out
    service = service_of("linux", ())
    assert service.path.read_text(encoding="utf-8") == service.text
    ran = asked.read_text(encoding="utf-8").splitlines()
    assert ran[-1] == " ".join(service.start[-1][1:])


def test_a_port_that_is_taken_is_said_before_anything_is_written(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux")
    monkeypatch.setattr(module, "holder_of", lambda port: f"another slowtok at {port}")

    assert do("install") == 1
    assert "127.0.0.1:4141 is taken by another slowtok at 4141" in capsys.readouterr().err
    assert not service_of("linux", ()).path.exists()


def test_settings_of_this_shell_that_the_service_does_not_get_are_named(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manager("linux")
    monkeypatch.setenv("SLOWTOK_UPSTREAM", "http://127.0.0.1:9")

    assert do("install") == 0
    assert "SLOWTOK_UPSTREAM is set in this shell" in capsys.readouterr().err


def test_a_key_does_not_go_into_the_file() -> None:
    said = why_not_as_service({"api_key": "hunter2"})

    assert said is not None
    assert "--config FILE" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("name", ["config", "log", "state_dir", "record"])
def test_a_path_from_this_folder_is_refused_and_the_whole_one_is_not(name: str) -> None:
    said = why_not_as_service({name: "here.toml"})

    assert said is not None
    assert str(Path("here.toml").absolute()) in said
    assert why_not_as_service({name: str(Path("here.toml").absolute())}) is None
    assert why_not_as_service({"log": "-"}) is None


def test_a_file_of_the_folder_it_starts_in_is_none_of_its_modules(
    tmp_path: Path, manager: Manager
) -> None:
    manager("linux")
    (tmp_path / "random.py").write_text("raise SystemExit('not the library')", encoding="utf-8")
    [line] = re.findall(
        r"^ExecStart=(.*)$", service_of("linux", ("--help",)).text, flags=re.MULTILINE
    )

    done = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


def test_windows_runs_it_without_a_window() -> None:
    assert "pythonw.exe</Command>" in service_of("win32", ()).text


def test_options_after_the_dashes_are_those_of_serve() -> None:
    done = run("service", "install", "--dry-run", "--", "--listen", "127.0.0.1:4242")

    assert done.returncode == 0
    assert "serve --listen 127.0.0.1:4242" in done.stdout


@pytest.mark.parametrize("wrong", [("--no-such",), ("--listen", "nowhere")])
def test_options_that_serve_would_refuse_are_refused_now(wrong: tuple[str, ...]) -> None:
    done = run("service", "install", "--dry-run", "--", *wrong)

    assert done.returncode == 2
    assert done.stdout == ""


def test_without_standard_output_as_under_windows_scheduler_commands_work() -> None:
    code = (
        "import sys; sys.stdout = sys.stderr = None; "
        "sys.argv = ['slowtok', 'service', 'install', '--dry-run']; "
        "from slowtok.proxy.cli.main import main; main()"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_serve_would_refuse_is_no_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOWTOK_API_KEY", "of this shell, which a service does not get")
    options = ["service", "install", "--dry-run", "--", "--listen", "0.0.0.0:4141"]
    with pytest.raises(SystemExit) as ended:
        _command_line()(args=options, prog_name="slowtok")

    assert ended.value.code == 2
    assert "listen = '0.0.0.0:4141' (from arguments): other machines" in capsys.readouterr().err
