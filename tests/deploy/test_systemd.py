"""The units: read by systemd itself, and rated by it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.deployed import DEPLOY

SYSTEMD = DEPLOY / "systemd"
SYSTEM, USER = SYSTEMD / "slowtok.service", SYSTEMD / "user" / "slowtok.service"
MAX_EXPOSED = 2.5  # of 10; systemd calls up to 2 ok for what has a network and devices

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")


def analyze(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "warning"},
    )


def startable(unit: Path, tmp_path: Path, *, more: str = "") -> Path:
    """The unit with a program that is there."""
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
    copy = tmp_path / "slowtok.service"
    copy.write_text(text + more)
    return copy


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if "slowtok.service" in line]


@pytest.mark.parametrize(("unit", "mode"), [(SYSTEM, "--system"), (USER, "--user")])
def test_systemd_reads_it(unit: Path, mode: str, tmp_path: Path) -> None:
    done = analyze(tmp_path, mode, "verify", str(startable(unit, tmp_path)))

    assert complaints(done) == []
    assert done.returncode == 0, done.stderr


def test_systemd_finds_a_wrong_key(tmp_path: Path) -> None:
    wrong = startable(SYSTEM, tmp_path, more="\n[Service]\nPrivateDevice=no\n")

    assert complaints(analyze(tmp_path, "verify", str(wrong)))


def rating(tmp_path: Path, unit: Path) -> float:
    done = analyze(tmp_path, "security", "--offline=true", str(unit))
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd does not rate files: {done.stderr}")
    return float(found[1])


def test_it_is_hardened(tmp_path: Path) -> None:
    assert rating(tmp_path, startable(SYSTEM, tmp_path)) <= MAX_EXPOSED


def test_the_rating_tells_a_bare_unit(tmp_path: Path) -> None:
    bare = tmp_path / "slowtok.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")

    assert rating(tmp_path, bare) > MAX_EXPOSED


def test_what_sampling_needs_is_not_taken_away() -> None:
    text = SYSTEM.read_text()

    for line in ("ProtectProc=default", "ProcSubset=all", "PrivateDevices=no", "PrivateNetwork=no"):
        assert f"\n{line}\n" in text
    assert "DeviceAllow=char-nvidiactl rw" in text
    assert "PrivateUsers" not in text  # every other user would be nobody
    for name in ("setrlimit", "@resources"):  # slowtok raises its limit of open files
        assert f"~{name}" not in text


def test_state_lies_where_systemd_makes_room_for_it() -> None:
    text = SYSTEM.read_text()

    assert "StateDirectory=slowtok\n" in text
    assert "Environment=SLOWTOK_STATE_DIR=%S/slowtok\n" in text
    assert "DynamicUser=yes\n" in text


def test_the_drop_in_only_changes_the_user(tmp_path: Path) -> None:
    drop_in = (SYSTEMD / "slowtok.service.d" / "same-user.conf").read_text()
    keys = re.findall(r"^(\w+)=", drop_in, flags=re.MULTILINE)

    assert keys == ["DynamicUser", "User", "Group"]
    both = startable(SYSTEM, tmp_path, more="\n" + drop_in.replace("ollama", "nobody"))
    assert [
        c for c in complaints(analyze(tmp_path, "verify", str(both))) if "nobody" not in c
    ] == []
