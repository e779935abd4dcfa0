"""A process whose standard streams are closed, or cannot be written."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.commands import SLOWTOK, environment
from fakes.records import full_record
from slowtok.proxy.runtime.utc import utc_text

SOCKET_AND_PRINT = """
import socket, sys
from slowtok.proxy.cli.main import _open_standard_streams
_open_standard_streams()
ours, theirs = socket.socketpair()
print("said", flush=True)
print("said", file=sys.stderr, flush=True)
theirs.setblocking(False)
ours.setblocking(False)
for end in (ours, theirs):
    assert end.fileno() > 2
    try:
        raise SystemExit(f"a connection got {end.recv(9)!r}")
    except BlockingIOError:
        pass
"""


@pytest.mark.skipif(sys.platform == "win32", reason="its shell closes no descriptors")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_nothing_that_is_printed_gets_into_a_connection(closed: str) -> None:
    ran = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SOCKET_AND_PRINT],
        check=False,
        capture_output=True,
    )

    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("fit", "Qwen3-8B", "--gpu", "RTX 5090"),
        ("fit", "Qwen3-8B", "--gpu", "RTX 5090", "--json"),
        ("tail", "--no-follow", "--json"),
        ("report",),
        ("explain",),
    ],
)
def test_output_that_cannot_be_written_is_a_line(command: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({**full_record(), "ts": utc_text(time.time())}) + "\n", "utf-8")
    here = ("--log", str(log)) if command[0] in ("tail", "report", "explain") else ()
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*SLOWTOK, *command, *here],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    assert ran.returncode == 1
    assert ran.stderr == "slowtok: standard output: No space left on device\n"
