"""Listening sockets, opened before anything else so that a taken port is reported at once."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable

BACKLOG = 1024  # connections that the kernel keeps until they are accepted

HANDLES = 1 if sys.platform == "win32" else 8
"""On one socket. libuv accepts one connection for each of them in a turn of the loop (since
libuv/libuv#3696): with one handle, the last of 400 clients that came beside 40,000 tokens/s waited
for 3.4 s, because turns are long then. More would cost each new connection a call more."""

KEEPALIVE_IDLE_S = 60  # Linux's two hours would hold an engine for a client that is long gone


def open_listener(
    host: str, port: int, client_timeout_s: float, *, shared: bool = False
) -> socket.socket:
    """Return a bound socket; a connection ends if its client reads nothing for `client_timeout_s`.

    Only Linux has such a time-out (TCP_USER_TIMEOUT). Without it, a client that was stopped would
    occupy its engine for ever.

    `shared`: other sockets of this user that also set it may bind the same port (SO_REUSEPORT).
    Such a socket listens at once: until then, another slowtok would find the port free.

    Raises:
        OSError: the address cannot be used.
        UnicodeError: the host name is not a valid one.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if sys.platform == "linux":  # each connection inherits these
            timeout_ms = int(client_timeout_s * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        listener.bind(address)
        if shared:
            listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def accept(
    listener: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]
) -> list[asyncio.Server]:
    """Accept clients at a bound socket until each of the returned servers is closed."""
    loop = asyncio.get_running_loop()
    sockets = [listener, *(listener.dup() for _ in range(HANDLES - 1))]
    return [await loop.create_server(make_protocol, sock=sock, backlog=BACKLOG) for sock in sockets]


def open_listeners(
    host: str, port: int, client_timeout_s: float, count: int
) -> tuple[socket.socket, ...]:
    """Return `count` sockets bound to one port; Linux spreads the connections over them.

    On other systems they are duplicates of one socket: whichever process is free accepts next.

    Raises:
        OSError, UnicodeError: as `open_listener`.
    """
    first = open_listener(host, port, client_timeout_s)
    if count == 1:
        return (first,)
    if sys.platform != "linux":
        return (first, *(first.dup() for _ in range(count - 1)))
    with first:  # opened unshared first: a second slowtok must not get half of the connections
        port = int(first.getsockname()[1])
    with contextlib.ExitStack() as opened:
        found = [
            opened.enter_context(open_listener(host, port, client_timeout_s, shared=True))
            for _ in range(count)
        ]
        opened.pop_all()
        return tuple(found)
