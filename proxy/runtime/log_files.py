"""Reads the log with its rotated files line by line, with never more than one line in memory.

`LogCheck` tells slowtok's lines from those of a file that is not one of its logs.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

MAX_LINE_BYTES = 4_000_000  # a record has some kilobytes; a longer line is no record
_NUMBER = re.compile(r"\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One open file of the log; a rotation meanwhile loses nothing."""

    path: Path
    file: BinaryIO
    size_bytes: int
    written_unix_s: float


@contextlib.contextmanager
def open_log(path: Path) -> Iterator[list[LogFile]]:
    """Open the log and its rotated files (`log.jsonl.1`, ...), the oldest first.

    Raises:
        OSError: one of them cannot be read.
    """
    with contextlib.ExitStack() as stack:
        yield [_open(log_path, stack) for log_path in log_paths(path)]


def log_paths(path: Path) -> list[Path]:
    """Return the existing files of a log, oldest first."""
    rotated = {}
    with contextlib.suppress(OSError):
        for rotated_path in path.parent.iterdir():
            number = _NUMBER.fullmatch(rotated_path.name.removeprefix(path.name))
            if rotated_path.name.startswith(path.name) and number:
                rotated[int(number[1])] = rotated_path
    oldest_first = [rotated[number] for number in sorted(rotated, reverse=True)]
    return [*oldest_first, *([path] if path.exists() else [])]


def lines(log: LogFile, advance: Callable[[int], None]) -> Iterator[bytes | None]:
    """Yield each line; None for one that is too long. `advance` gets the number of bytes read."""
    while line := log.file.readline(MAX_LINE_BYTES):
        advance(len(line))
        if line.endswith(b"\n") or len(line) < MAX_LINE_BYTES:
            yield line
            continue
        while (rest := log.file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
            advance(len(rest))
        advance(len(rest))
        yield None


def _open(path: Path, stack: contextlib.ExitStack) -> LogFile:
    file = stack.enter_context(path.open("rb"))
    status = os.fstat(file.fileno())
    return LogFile(path=path, file=file, size_bytes=status.st_size, written_unix_s=status.st_mtime)


class NotASlowtokLogError(Exception):
    """The file was not written by slowtok. The text says so, in one line."""


@dataclass(slots=True)
class LogCheck:
    """Counts the lines read from a file, and those that are slowtok's."""

    lines: int = 0
    own: int = 0

    def entry(self, line: bytes | None) -> dict[str, Any] | None:
        """Return the parsed line; None if it is not slowtok's."""
        self.lines += 1
        try:
            found = orjson.loads(line or b"")
        except orjson.JSONDecodeError:
            return None
        if not isinstance(found, dict) or "event" not in found:
            return None
        self.own += 1
        return found

    def raise_if_foreign(self, path: Path) -> None:
        """Raise if no line is slowtok's; an empty file is a valid log.

        Raises:
            NotASlowtokLogError: it is another kind of file.
        """
        if not self.own and (self.lines or _has_no_line(path)):
            count = f"{self.lines:,} line{'' if self.lines == 1 else 's'} read"
            raise NotASlowtokLogError(f"no line of {path} is a slowtok record ({count})")


def _has_no_line(path: Path) -> bool:
    """Return True for a file without a complete line whose begin is not that of a slowtok line."""
    try:
        with path.open("rb") as file:
            return file.read(1) not in (b"", b"{")
    except OSError:
        return False
