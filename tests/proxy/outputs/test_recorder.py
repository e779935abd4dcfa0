"""Case files: complete, private, and written beside the requests."""

import os
import stat
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest

from fakes.cases import healthy, with_timeline
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.outputs.case_file import Recorder, parse_case


def recorded(directory: Path, *, judged: bool = True) -> Recorder:
    recorder = Recorder(directory)
    recorder(healthy(), diagnose(healthy()) if judged else None, {"verdict": "normal"})
    recorder.writer.close()
    return recorder


def test_case_is_written_whole(tmp_path: Path) -> None:
    recorded(tmp_path / "cases")

    [path] = (tmp_path / "cases").iterdir()
    assert path.name == f"{healthy().timeline.request_id}.json"
    written = orjson.loads(path.read_bytes())
    told = written.pop("recorded")
    assert written == orjson.loads(orjson.dumps(asdict(healthy())))
    assert written["schema"] == 1
    assert told == {"slowtok": version("slowtok"), "record": {"verdict": "normal"}}
    assert parse_case(path.read_bytes()).case == healthy()


def test_what_merely_passed_is_not_recorded(tmp_path: Path) -> None:
    recorded(tmp_path, judged=False)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    recorded(tmp_path / "cases")

    [path] = (tmp_path / "cases").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_directory_that_went_away_is_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "cases")
    (tmp_path / "cases").rmdir()
    recorder(healthy(), diagnose(healthy()), {})
    recorder.writer.close()

    assert recorder.writer.failed == 1


def test_directory_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        Recorder(tmp_path / "file")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_directory_that_takes_no_files_is_an_error_at_once() -> None:
    with pytest.raises(OSError, match="/proc"):
        Recorder(Path("/proc"))


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_full_disk_is_counted_and_leaves_no_half_case(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the same place."""
    code = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from fakes.cases import healthy\n"
        "from slowtok.detectors.diagnosis.diagnose import diagnose\n"
        "from slowtok.proxy.outputs.case_file import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "recorder(healthy(), diagnose(healthy()), {}); recorder.writer.close()\n"
        "print(recorder.writer.failed)\n"
    )
    tests = str(Path(__file__).resolve().parents[2])
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": tests},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert ended.stdout == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_case_of_the_same_name_is_never_written_over(tmp_path: Path) -> None:
    recorded(tmp_path)
    [path] = tmp_path.iterdir()
    before = path.read_bytes()
    recorder = Recorder(tmp_path)
    recorder(with_timeline(healthy(), model="other"), diagnose(healthy()), {})
    recorder.writer.close()

    assert (recorder.writer.failed, path.read_bytes()) == (1, before)
