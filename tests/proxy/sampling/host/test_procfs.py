import subprocess
import sys
from pathlib import Path

import pytest

from fakes.listening_process import open_descriptors
from slowtok.proxy.sampling.host.procfs import CounterRate, ProcFiles, total

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc here")


def test_a_file_is_read_again_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_bytes(b"first")
    files = ProcFiles()
    assert files.read(str(path)) == b"first"

    path.write_bytes(b"second")

    assert files.read(str(path)) == b"second"


def test_a_missing_file_is_none() -> None:
    assert ProcFiles().read("/proc/does-not-exist") is None


@needs_proc
def test_an_ended_process_is_none_and_leaves_no_descriptor() -> None:
    files = ProcFiles()
    before = open_descriptors()
    with subprocess.Popen(["sleep", "60"]) as child:
        path = f"/proc/{child.pid}/stat"
        assert files.read(path) is not None
        assert open_descriptors() == before + 1
        child.kill()
        child.wait()

        assert files.read(path) is None
        assert open_descriptors() == before


@needs_proc
def test_descriptors_stay_bounded() -> None:
    files = ProcFiles(most_open=2)
    before = open_descriptors()
    paths = [f"/proc/{name}" for name in ("stat", "meminfo", "vmstat", "uptime")]

    assert all(files.read(path) for path in paths for _ in range(2))
    assert open_descriptors() == before + 2

    files.drop_below("/proc")
    assert open_descriptors() == before


def test_rate_needs_two_readings() -> None:
    rate = CounterRate()

    assert rate.per_s(100, at_s=1.0) is None
    assert rate.per_s(150, at_s=3.0) == 25.0


@pytest.mark.parametrize(
    ("value", "at_s"),
    [(90, 2.0), (None, 2.0), (110, 1.0)],
    ids=["counter went backwards", "reading failed", "no time passed"],
)
def test_rate_is_unknown(value: float | None, at_s: float) -> None:
    rate = CounterRate()
    rate.per_s(100, at_s=1.0)

    assert rate.per_s(value, at_s) is None


def test_rate_begins_anew_after_a_gap() -> None:
    rate = CounterRate()
    rate.per_s(100, at_s=1.0)
    rate.per_s(None, at_s=2.0)

    assert rate.per_s(300, at_s=3.0) is None
    assert rate.per_s(310, at_s=4.0) == 10.0


def test_total_of_nothing_known_is_none() -> None:
    assert total([]) is None
    assert total([None, None]) is None
    assert total([None, 0.0]) == 0.0
    assert total([1.0, None, 2.0]) == 3.0
