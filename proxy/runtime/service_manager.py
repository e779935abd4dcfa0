"""Notifies systemd (sd_notify) that slowtok is ready, or that it is stopping.

A unit of `Type=notify` counts as started only then, so that a failed start is reported as failed.
"""

import contextlib
import os
import socket

END_S = 12.0  # from the end of `grace_s` until the last process is gone. Heuristic


def tell_ready() -> None:
    """Notify that clients are accepted."""
    _tell("READY=1")


def tell_stopping(grace_s: float) -> None:
    """Notify that slowtok stops, and request the time that replies in flight may take."""
    _tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round((grace_s + END_S) * 1e6)}")


def _tell(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return  # nobody wants to know
    if address.startswith("@"):
        address = "\0" + address[1:]  # an abstract one
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
