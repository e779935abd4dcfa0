import plistlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fakes.deployed import DEPLOY
from slowtok.proxy.cli.commands.service_files import launchd_agent, scheduled_task, systemd_unit

RUN = ("/opt/py/bin/python", "-m", "slowtok.proxy", "serve", "--upstream", "a=http://127.0.0.1:9")
ODD = ("/opt/my py/python", "--log", 'a "b" 50% $HOME \\ <&>')


def test_systemds_unit_is_the_one_of_deploy() -> None:
    here = systemd_unit(("%h/.local/bin/slowtok", "serve"), Path("/c")).text
    deployed = (DEPLOY / "systemd" / "user" / "slowtok.service").read_text(encoding="utf-8")
    without_comments = re.sub(r"^#.*\n", "", deployed, flags=re.MULTILINE)

    assert here.replace('"%%h/.local/bin/slowtok"', "%h/.local/bin/slowtok") == without_comments


def test_systemds_unit_lies_where_its_user_manager_looks() -> None:
    unit = systemd_unit(RUN, Path("/home/me/.config"))

    assert unit.path == Path("/home/me/.config/systemd/user/slowtok.service")
    assert f"\nExecStart={' '.join(RUN)}\n" in unit.text


def test_odd_words_reach_systemd_as_they_are() -> None:
    [line] = re.findall(r"^ExecStart=(.*)$", systemd_unit(ODD, Path("/c")).text, re.MULTILINE)

    read = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]
    assert read == list(ODD)
    assert (
        re.search(r"(?<![%$])(%(?!%)|\$(?!\$))", line.replace("%%", "").replace("$$", "")) is None
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_reads_a_unit_with_odd_words(tmp_path: Path) -> None:
    unit = tmp_path / "slowtok.service"
    unit.write_text(systemd_unit(("/bin/true", *ODD), tmp_path).text, encoding="utf-8")

    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )

    assert [line for line in done.stderr.splitlines() if "slowtok.service" in line] == []


def test_launchd_gets_every_word_and_starts_it_again_only_after_a_failure() -> None:
    agent = launchd_agent(ODD, Path("/Users/me"), 501)
    read = plistlib.loads(agent.text.encode())

    assert agent.path == Path("/Users/me/Library/LaunchAgents/local.slowtok.plist")
    assert read["Label"] == agent.path.stem
    assert read["ProgramArguments"] == list(ODD)
    assert read["RunAtLoad"] is True
    assert read["KeepAlive"] == {"SuccessfulExit": False}
    assert agent.start == (("launchctl", "bootstrap", "gui/501", str(agent.path)),)
    assert agent.stop == (("launchctl", "bootout", "gui/501/local.slowtok"),)


def test_windows_task_has_no_end_no_battery_rule_and_the_priority_of_other_programs() -> None:
    task = scheduled_task(RUN, Path("/app"), "PC\\me")
    read = ElementTree.fromstring(task.text.partition("\n")[2])
    values = {found.tag.partition("}")[2]: found.text for found in read.iter()}

    assert values["ExecutionTimeLimit"] == "PT0S"
    assert values["DisallowStartIfOnBatteries"] == "false"
    assert values["StopIfGoingOnBatteries"] == "false"
    assert values["Priority"] == "5"
    assert values["RunLevel"] == "LeastPrivilege"
    assert values["UserId"] == "PC\\me"


def test_windows_task_quotes_what_xml_and_windows_take_for_their_own() -> None:
    task = scheduled_task(ODD, Path("/app"), "me")
    read = ElementTree.fromstring(task.text.partition("\n")[2])
    values = {found.tag.partition("}")[2]: found.text for found in read.iter()}

    assert values["Command"] == "/opt/my py/python"
    assert values["Arguments"] == subprocess.list2cmdline(ODD[1:])


def test_windows_reads_its_task_as_utf_16() -> None:
    task = scheduled_task(RUN, Path("/app"), "Jürgen")

    assert task.text.startswith('<?xml version="1.0" encoding="UTF-16"?>')
    assert task.encoding == "utf-16"
    assert ElementTree.fromstring(task.text.encode(task.encoding)) is not None
