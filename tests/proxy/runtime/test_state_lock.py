"""Two slowtoks on one state directory."""

import sys
from pathlib import Path

import pytest

from slowtok.proxy.runtime.state_dir import claimed


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
