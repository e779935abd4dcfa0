"""A slow line to an engine: passes bytes on as they are, replies no faster than it is told to.

Or a proxy that buffers: it holds a stream back until the engine has nothing more to say.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from fakes.wire import LAST_CHUNK

PIECE_BYTES = 2048
STREAM = b"text/event-stream"

Pass = Callable[[socket.socket, socket.socket], None]


@contextlib.contextmanager
def slow_line(url: str, bytes_per_s: float) -> Iterator[str]:
    """Pass replies on at `bytes_per_s`; yields the address to ask."""
    never = threading.Event()

    def trickle(engine: socket.socket, asking: socket.socket) -> None:
        while piece := engine.recv(PIECE_BYTES):
            asking.sendall(piece)
            never.wait(len(piece) / bytes_per_s)

    with _line(url, trickle) as address:
        yield address


@contextlib.contextmanager
def buffering_line(url: str) -> Iterator[str]:
    """Pass each stream on in one piece; yields the address to ask."""

    def collect(engine: socket.socket, asking: socket.socket) -> None:
        held = b""
        while piece := engine.recv(1 << 20):
            held += piece
            if STREAM in held and not held.endswith(b"\r\n" + LAST_CHUNK):
                continue
            asking.sendall(held)
            held = b""

    with _line(url, collect) as address:
        yield address


@contextlib.contextmanager
def _line(url: str, back: Pass) -> Iterator[str]:
    parts = urlsplit(url)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener was closed
                while True:
                    asking, _ = listener.accept()
                    engine = socket.create_connection((parts.hostname, parts.port or 80))
                    for way in ((_forward, asking, engine), (back, engine, asking)):
                        threading.Thread(target=_until_closed, args=way, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _until_closed(way: Pass, source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        way(source, target)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def _forward(source: socket.socket, target: socket.socket) -> None:
    while piece := source.recv(1 << 16):
        target.sendall(piece)
