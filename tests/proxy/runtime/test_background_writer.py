"""Writing in a thread: in order, private, counted, and never in anybody's way."""

import os
import shutil
import stat
import sys
import threading
from pathlib import Path

import pytest

from slowtok.proxy.runtime import background_writer
from slowtok.proxy.runtime.background_writer import BackgroundWriter, to_file, to_stdout

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
FULL = Path("/dev/full")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_lines_come_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    writer = to_file(path, max_bytes=10**6, backups=1)
    for i in range(1000):
        writer.write(f"line {i} 100 %s é")
    writer.close()

    assert path.read_text("utf-8").splitlines() == [f"line {i} 100 %s é" for i in range(1000)]
    assert (writer.dropped, writer.failed) == (0, 0)


def test_file_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("before\n")
    writer = to_file(path, max_bytes=10**6, backups=1)
    writer.write("after")
    writer.close()

    assert path.read_text() == "before\nafter\n"


def test_file_is_rotated_by_size_and_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writer = to_file(path, max_bytes=100, backups=2)
    for i in range(20):
        writer.write(f"{i:02} {'x' * 46}")  # 50 bytes with its end: one a file, as two are 100
    writer.close()

    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    assert all(file.stat().st_size <= 100 for file in kept)
    assert path.read_text()[:2] == "19"


@POSIX
@pytest.mark.parametrize("done", ["moved", "removed"])
def test_file_that_somebody_moves_or_removes_is_begun_anew(tmp_path: Path, done: str) -> None:
    path, elsewhere = tmp_path / "log.jsonl", tmp_path / "elsewhere"
    writer = to_file(path, max_bytes=10**6, backups=1)
    path.rename(elsewhere)
    if done == "removed":
        elsewhere.unlink()
    writer.write("after")
    writer.close()

    assert path.read_text() == "after\n"
    assert mode(path) == 0o600
    assert done == "removed" or elsewhere.read_text() == ""


@POSIX
def test_lines_are_lost_only_as_long_as_the_folder_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log.jsonl"
    path.parent.mkdir()
    file = background_writer._PrivateFile(path, maxBytes=10**6, backupCount=1, encoding="utf-8")
    shutil.rmtree(path.parent)
    with pytest.raises(FileNotFoundError):
        file.emit_together(["lost"])
    path.parent.mkdir()
    file.emit_together(["kept"])
    file.close()

    assert path.read_text() == "kept\n"


@POSIX
def test_only_the_owner_can_read_it_after_a_rotation_too(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        writer = to_file(tmp_path / "own" / "log.jsonl", max_bytes=10, backups=1)
        for _ in range(3):
            writer.write("x" * 20)
        writer.close()
    finally:
        os.umask(before)

    assert mode(tmp_path / "own") == 0o700
    assert {mode(file) for file in (tmp_path / "own").iterdir()} == {0o600}


def test_file_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        to_file(tmp_path, max_bytes=10, backups=1)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        to_file(tmp_path / "file" / "log", max_bytes=10, backups=1)


@POSIX
def test_pipe_that_nobody_reads_is_an_error_at_once_and_one_with_a_reader_gets_lines(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(OSError, match=r"No such device|not configured"):
        to_file(pipe, max_bytes=1000, backups=1)

    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = to_file(pipe, max_bytes=1000, backups=1)
    writer.write("a line")
    writer.close()
    assert os.read(reader, 100) == b"a line\n"
    os.close(reader)


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")
def test_full_disk_is_counted() -> None:
    writer = to_file(FULL, max_bytes=10**6, backups=1)
    for _ in range(3):
        writer.write("x")
    writer.close()

    assert writer.failed == 3


def test_writing_goes_on_when_it_can_again() -> None:
    written = []

    def write(item: int) -> None:
        if item == 2:
            raise OSError("disk full")
        written.append(item)

    writer = BackgroundWriter(write)
    for i in range(4):
        writer.write(i)
    writer.close()

    assert written == [0, 1, 3]
    assert writer.failed == 1


def test_lines_that_come_together_are_written_together() -> None:
    written: list[int] = []
    flushed_at: list[int] = []
    began, may_go = threading.Event(), threading.Event()

    def write(item: int) -> None:
        written.append(item)
        began.set()
        may_go.wait(10)

    writer = BackgroundWriter(write, flush=lambda: flushed_at.append(len(written)), gather_s=0.0)
    writer.write(0)
    assert began.wait(10)
    for i in range(1, 5):
        writer.write(i)
    may_go.set()
    writer.close()

    assert written == [0, 1, 2, 3, 4]
    assert flushed_at == [5]


def test_the_end_does_not_wait_for_more() -> None:
    written: list[int] = []
    writer = BackgroundWriter(written.append, flush=lambda: None, gather_s=3600.0)
    writer.write(1)
    writer.close()

    assert written == [1]


def test_lines_that_are_lost_together_are_all_counted() -> None:
    def flush() -> None:
        raise OSError("disk full")

    writer = BackgroundWriter[int](lambda _item: None, flush=flush)
    for i in range(3):
        writer.write(i)
    writer.close()

    assert writer.failed == 3


def test_stuck_writer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_writer, "CLOSE_S", 0.05)
    began, may_go = threading.Event(), threading.Event()

    def write(_item: int) -> None:
        began.set()
        may_go.wait(10)

    writer = BackgroundWriter(write, max_queued=5)
    writer.write(0)
    assert began.wait(10)
    for i in range(8):
        writer.write(i)

    writer.close()  # returns although the thread does not

    assert writer.dropped == 3
    may_go.set()


def test_what_is_queued_is_written_before_the_end() -> None:
    written: list[int] = []
    closed = []
    writer = BackgroundWriter(written.append, close=lambda: closed.append(len(written)))
    for i in range(500):
        writer.write(i)
    writer.close()

    assert closed == [500]


def test_standard_output(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)  # the one that has a descriptor
    writer = to_stdout()
    writer.write("one é \udcff")
    writer.write("two")
    writer.close()

    assert capfd.readouterr().out == "one é \\udcff\ntwo\n"
