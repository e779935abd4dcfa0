"""`slowtok tail`: the log's requests, readable, as they come."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from slowtok.config.settings import Settings
from slowtok.proxy.outputs.console import request_line

POLL_S = 0.2


def run_tail(settings: Settings, *, last: int, follow: bool) -> int:
    """Print the last requests of the log, then new ones until Ctrl-C. Returns the exit code."""
    path = settings.log_path
    if path is None or (not path.exists() and not follow):
        sys.stderr.write(f"slowtok: no log at {path}; slowtok serve writes it\n")
        return 1
    console = Console(highlight=False, soft_wrap=True)
    try:
        for line in _lines(path, last, follow):
            _print(console, line, json=settings.json_lines)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.stderr.write(f"slowtok: {path}: {error.strerror}\n")
        return 1
    return 0


def _lines(path: Path, last: int, follow: bool) -> Iterator[bytes]:
    """Yield the last requests of a file, then what is appended, across rotations."""
    while not path.exists():
        time.sleep(POLL_S)
    file = path.open("rb")
    try:
        kept = deque((line for line in file if _request(line)), maxlen=last)
        yield from kept
        part = b""
        while follow:
            piece = file.readline()
            if piece:
                part += piece
                if part.endswith(b"\n"):
                    yield part
                    part = b""
            elif _was_rotated(path, file.fileno(), file.tell()):
                file.close()
                file, part = path.open("rb"), b""
            else:
                time.sleep(POLL_S)
    finally:
        file.close()


def _was_rotated(path: Path, descriptor: int, position: int) -> bool:
    """Say whether the name belongs to another file by now, or to one that was cut."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return now.st_ino != os.fstat(descriptor).st_ino or now.st_size < position


def _print(console: Console, line: bytes, *, json: bool) -> None:
    record = _request(line)
    if record is None:
        return
    if json:
        sys.stdout.write(line.decode("utf-8", "replace"))
        sys.stdout.flush()
    elif "verdict" in record:
        console.print(request_line(record))


def _request(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) and record.get("event") == "request" else None
