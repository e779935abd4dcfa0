"""The runs that a log tells of."""

import sys
from pathlib import Path

import pytest

from slowtok.proxy.runs.ledger import newest_records


def test_records_of_runs_are_found_the_oldest_first(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    (tmp_path / "log.jsonl.1").write_text('{"event":"request","id":"a","run":{"id":"r"}}\n')
    log.write_text(
        '{"event":"request","id":"b","run":{"id":"r"}}\n'
        '{"event":"request","id":"none"}\n{"run": not JSON\n'
    )

    assert [record["id"] for record in newest_records(log)] == ["a", "b"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_a_device_is_not_read() -> None:
    assert newest_records(Path("/dev/full")) == []
