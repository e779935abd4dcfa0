"""Real processes and descriptors for the sampling tests: something that listens and spins."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

# Listens, spins in as many threads as asked for (hashing lets go of the interpreter's lock), and
# ends when its stdin closes, so that it never outlives a test.
SERVER = """
import hashlib, os, socket, subprocess, sys, threading
listener = socket.create_server(("127.0.0.1", int(os.environ.get("LISTEN_AT", 0))))
block = bytes(1 << 20)
def spin():
    while True:
        hashlib.sha256(block)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=spin, daemon=True).start()
if len(sys.argv) > 2 and sys.argv[2] == "parent":
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()", "--child"])
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


class Server(NamedTuple):
    pid: int
    port: int


@contextmanager
def running(*arguments: str, env: dict[str, str] | None = None, port: int = 0) -> Iterator[Server]:
    """Run a server; its arguments say nothing of `port` (0: any that is free) unless told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**(os.environ if env is None else env), "LISTEN_AT": str(port)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Server(process.pid, int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def open_descriptors() -> int:
    """Count what this process has open."""
    with os.scandir("/proc/self/fd") as entries:
        return sum(1 for _ in entries)
