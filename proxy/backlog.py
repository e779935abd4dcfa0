"""How much a client has not taken yet: in the transport's buffer, and in the kernel's.

The kernel takes a megabyte or more in a client's stead, so the transport's own buffer alone would
show a slow reader only when it is far behind. Linux tells the bytes that it could not send yet
because the client's window is full or the network is; elsewhere the transport's buffer has to do.
"""

import asyncio
import struct
import sys
from collections.abc import Callable

if sys.platform == "linux":
    from fcntl import ioctl

SIOCOUTQNSD = 0x894B  # linux/sockios.h: bytes in the output queue that were not sent yet
_INT = struct.Struct("i")

Backlog = Callable[[], int]


def backlog_of(transport: asyncio.WriteTransport) -> Backlog:
    """Return a function that tells how many bytes wait for the client; it never raises."""
    waiting = transport.get_write_buffer_size
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return waiting
    descriptor = sock.fileno()

    def unsent() -> int:
        if transport.is_closing():
            return 0
        try:
            answer = ioctl(descriptor, SIOCOUTQNSD, _INT.pack(0))
        except OSError:
            return waiting()
        return waiting() + int(_INT.unpack(answer)[0])

    return unsent
