"""Two slowtoks on one state directory, and files in it that are replaced as a whole."""

import stat
import sys
from pathlib import Path

import pytest

from slowtok.proxy.runtime.state_dir import claimed, replace_file


def test_nobody_else(tmp_path: Path) -> None:
    for _ in range(2):  # it is free again afterwards
        with claimed(tmp_path / "new", "me") as other:
            assert other is None


def test_directory_that_cannot_be_made_accuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with claimed(tmp_path / "file", "me") as other:
        assert other is None


@pytest.mark.skipif(sys.platform == "win32", reason="not seen on Windows")
def test_the_second_is_told_who_was_first(tmp_path: Path) -> None:
    with claimed(tmp_path, "process 1 at here"), claimed(tmp_path, "me") as other:
        assert other == "process 1 at here"


def test_it_is_made_with_its_directory_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "x.json"

    replace_file(path, b"{}")

    assert path.read_bytes() == b"{}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_new_one_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x.json"

    replace_file(path, b"a longer one")
    replace_file(path, b"new")

    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"new"]


def test_a_write_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    replace_file(path, b"old")

    def full(*_: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space left"):
        replace_file(path, b"new")

    assert path.read_bytes() == b"old"
