"""The runs that a log tells of."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from slowtok.proxy.runtime.log_files import lines, log_paths, open_log

NEWEST_BYTES = 4 * 1024 * 1024  # about a thousand records; read before the start
_HAS_RUN = b'"run":'


def newest_records(path: Path, most_bytes: int = NEWEST_BYTES) -> list[dict[str, Any]]:
    """Return the records of runs at the end of a log, the oldest first; none where it is not."""
    found: list[dict[str, Any]] = []
    left = most_bytes
    try:
        for one in reversed(log_paths(path)):
            if left <= 0:
                break
            if not one.is_file():  # a device or a pipe would be read for ever
                continue
            with one.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - left, 0))
                if size > left:
                    file.readline()
                found = [record for line in file if (record := _record(line))] + found
            left -= size
    except OSError:
        return found
    return found


def run_records(path: Path, advance: Callable[[int], None]) -> Iterator[dict[str, Any]]:
    """Yield each record of a run in a log and its rotated files, the oldest first.

    Raises:
        OSError: one of them cannot be read.
    """
    with open_log(path) as files:
        for file in files:
            for line in lines(file, advance):
                if line is not None and (record := _record(line)):
                    yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if _HAS_RUN not in line:
        return None
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    is_one = isinstance(found, dict) and found.get("event") == "request"
    return found if is_one and isinstance(found.get("run"), dict) else None
