"""A process that was started without standard streams."""

import subprocess
import sys

import pytest

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
