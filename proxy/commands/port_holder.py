"""Who listens at a port that cannot be had, as far as this user may see."""

import errno
import os

import psutil

IN_USE = frozenset({errno.EADDRINUSE})


def why_not(error: OSError | UnicodeError, port: int) -> str:
    """Say why a port cannot be had, by whom it is held, and what to do."""
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
        words = {os.path.basename(word) for word in process.cmdline()}  # noqa: PTH119 - bare text
        own = ("slowtok", "slowtok.proxy", "slowtok.proxy.workers")
        is_slowtok = not words.isdisjoint(own)
        return f"{'another slowtok' if is_slowtok else process.name()} (process {pid})"
    except (psutil.Error, OSError):
        return None
