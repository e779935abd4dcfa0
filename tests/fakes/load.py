"""Real load: processes that keep the cores busy, for a bounded time."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

BUSY = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


@contextlib.contextmanager
def busy_processes(count: int, limit_s: float = 60.0) -> Iterator[None]:
    """Keep `count` processes busy until the block ends, and never longer than `limit_s`."""
    code = BUSY.format(seconds=limit_s)
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()
