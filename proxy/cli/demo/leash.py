"""A slowtok on a leash: it ends when the process that started this one ends, however that ends.

`python -m slowtok.proxy.cli.demo.leash ...` runs `python -m slowtok.proxy ...` until then, and ends
with its exit code.
"""

import os
import signal
import subprocess
import sys
import threading

import psutil


def wait_for_end_of(pid: int) -> None:
    """Return when the process has ended."""
    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:
        return


def main() -> int:
    """Run it; SIGTERM is passed on."""
    parent_pid = os.getppid()
    command = (sys.executable, "-m", "slowtok.proxy", *sys.argv[1:])
    with subprocess.Popen(command) as slowtok:  # noqa: S603 - our own module

        def follow() -> None:
            wait_for_end_of(parent_pid)
            slowtok.terminate()

        signal.signal(signal.SIGTERM, lambda *_: slowtok.terminate())
        threading.Thread(target=follow, name="leash", daemon=True).start()
        code = slowtok.wait()
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
