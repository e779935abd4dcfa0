"""The Tab key: what bash, zsh and fish are answered when they ask for completions."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.commands import SLOWTOK, WAIT_S, environment, run
from slowtok.detectors.diagnosis.catalog import BY_CAUSE

SHELLS = ("bash", "zsh", "fish")


def offered(typed: str, shell: str = "bash") -> list[str]:
    """What a shell is offered where Tab is pressed after `typed`, without texts beside it."""
    words = typed.split(" ")
    asks = {
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_SLOWTOK_COMPLETE": f"complete_{shell}",
    }
    said = run(env=asks).stdout
    if shell == "zsh":
        quoted = said.partition("((")[2].partition("))")[0]
        return [line.split('"')[1] for line in quoted.splitlines()]
    return [line.partition("\t")[0] for line in said.splitlines() if line]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_command_is_completed(shell: str) -> None:
    assert offered("slowtok re", shell) == ["report", "replay"]


@pytest.mark.parametrize("shell", SHELLS)
def test_an_option_of_a_command_is_completed(shell: str) -> None:
    assert offered("slowtok report --si", shell) == ["--since"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_cause_is_completed(shell: str) -> None:
    assert offered("slowtok tail --cause ther", shell) == ["thermal-throttle"]


@pytest.mark.parametrize("command", ["tail", "report"])
def test_every_cause_is_offered(command: str) -> None:
    assert offered(f"slowtok {command} --cause ") == list(BY_CAUSE)


def test_values_of_a_choice_are_offered() -> None:
    assert offered("slowtok report --format ") == ["text", "json", "html"]


def test_options_of_serve_are_offered_where_its_name_is_left_out() -> None:
    assert "--upstream" in offered("slowtok --")
    assert "--version" in offered("slowtok --")
    assert offered("slowtok --upstream http://127.0.0.1:8080 --li") == ["--listen"]


def test_no_word_is_offered_twice() -> None:
    words = offered("slowtok --")

    assert len(words) == len(set(words))


def test_files_are_left_to_the_shell() -> None:
    assert offered("slowtok replay ") == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the command in it: completion scripts call it by its name."""
    command = tmp_path / "bin" / "slowtok"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(SLOWTOK)} "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return tmp_path


def in_bash(home: Path, script: str) -> str:
    here = environment(HOME=str(home))
    here["PATH"] = f"{home / 'bin'}:{here['PATH']}"
    return subprocess.run(
        ["bash", "--norc", "-c", script],
        env=here,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    ).stdout


bash_only = pytest.mark.skipif(
    sys.platform == "win32" or shutil.which("bash") is None, reason="no bash here"
)


@bash_only
def test_what_is_shown_completes_in_a_real_bash(home: Path) -> None:
    script = (
        'shown="$(slowtok --show-completion)"; eval "$shown"; '
        "COMP_WORDS=(slowtok tail --cause ther) COMP_CWORD=3; "
        '_slowtok_completion slowtok; echo "${COMPREPLY[@]}"'
    )

    assert in_bash(home, script) == "thermal-throttle\n"


@bash_only
def test_installing_writes_the_script_and_one_line_that_reads_it(home: Path) -> None:
    (home / ".bashrc").write_text("export MINE=1\n", encoding="utf-8")

    in_bash(home, "slowtok --install-completion; slowtok --install-completion; true")

    installed = home / ".bash_completions" / "slowtok.sh"
    assert "_SLOWTOK_COMPLETE=complete_bash" in installed.read_text(encoding="utf-8")
    bashrc = (home / ".bashrc").read_text(encoding="utf-8").split("\n")
    assert bashrc.count("export MINE=1") == 1
    assert bashrc.count(f"source '{installed}'") == 1


def test_commands_do_not_load_what_only_the_tab_key_needs() -> None:
    catalog = "slowtok.detectors.diagnosis.catalog"
    code = f"import sys, slowtok.proxy.cli.main; print({catalog!r} in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )

    assert done.stdout.strip() == "False"


def test_help_names_the_two_options_once_and_no_command_has_them() -> None:
    wide = {"COLUMNS": "120"}
    lines = run("-h", env=wide).stdout.splitlines()

    assert len([line for line in lines if "completion" in line]) == 2
    assert "completion" not in run("serve", "-h", env=wide).stdout
