"""Ties a process to the one that started it: when that one ends, however it ends, so does this one.

`python -m slowtok.proxy.demo.leash ...` is `python -m slowtok.proxy ...` on such a leash.
"""

import os
import runpy
import signal
import sys
import threading

import psutil


def wait_for_end_of(pid: int) -> None:
    """Return when the process has ended."""
    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:
        return


def tie_to(pid: int) -> None:
    """End this process, as by SIGTERM, when the other one has ended."""

    def follow() -> None:
        wait_for_end_of(pid)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="leash", daemon=True).start()


if __name__ == "__main__":
    tie_to(os.getppid())
    sys.argv[0] = "slowtok"
    runpy.run_module("slowtok.proxy", run_name="__main__")
