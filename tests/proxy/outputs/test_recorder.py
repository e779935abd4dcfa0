"""Case files: complete, private, and written beside the requests."""

import stat
import sys
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from fakes.cases import healthy
from slowtok.detectors.diagnose import diagnose
from slowtok.proxy.outputs.recorder import Recorder


def recorded(directory: Path, *, judged: bool = True) -> Recorder:
    recorder = Recorder(directory)
    recorder(healthy(), diagnose(healthy()) if judged else None, {})
    recorder.writer.close()
    return recorder


def test_case_is_written_whole(tmp_path: Path) -> None:
    recorded(tmp_path / "cases")

    [path] = (tmp_path / "cases").iterdir()
    assert path.name == f"{healthy().timeline.request_id}.json"
    assert orjson.loads(path.read_bytes()) == orjson.loads(orjson.dumps(asdict(healthy())))
    assert orjson.loads(path.read_bytes())["schema"] == 1


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
