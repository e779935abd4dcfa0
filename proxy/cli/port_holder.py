"""Finds who listens at a port that is taken, as far as this user may see."""

import errno
import os

import psutil

IN_USE = frozenset({errno.EADDRINUSE})


def why_not(error: OSError | UnicodeError, port: int) -> str:
    """Return why a port cannot be had, by whom it is held, and what to do."""
    said = getattr(error, "strerror", None) or type(error).__name__
    if getattr(error, "errno", None) not in IN_USE:
        return f"cannot be used: {said}"
    holder = holder_of(port)
    by = f" by {holder}" if holder else ""
    return f"cannot be used: {said}{by}; --listen HOST:PORT takes another port"


def holder_of(port: int) -> str | None:
    """Return the program that listens there and its process, None where that cannot be seen."""
    try:
        found = (
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        )
        pid = next((pid for pid in found if pid), None)
        if pid is None:
            return None
        process = psutil.Process(pid)
        if not _is_slowtok(process):
            return f"{process.name()} (process {pid})"
        while (parent := process.parent()) is not None and _is_slowtok(parent):
            process = parent  # signals are for the first of them
        return f"another slowtok (process {process.pid})"
    except (psutil.Error, OSError):
        return None


def _is_slowtok(process: psutil.Process) -> bool:
    words = {os.path.basename(word) for word in process.cmdline()}  # noqa: PTH119 - bare text
    return not words.isdisjoint(("slowtok", "slowtok.proxy", "slowtok.proxy.workers"))
