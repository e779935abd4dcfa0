"""An address that takes no connection and refuses none."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def full_port() -> Iterator[str]:
    """The URL of a port whose queue is full: the kernel drops whoever comes next."""
    with socket.socket() as full, socket.socket() as one, socket.socket() as two:
        full.bind(("127.0.0.1", 0))
        full.listen(0)  # one connection fills it
        for filling in (one, two):
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"
