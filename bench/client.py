"""The load client: opens streams, reads them as they come, notes how late each token is."""

import select
import selectors
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.engine import MARK, TIME_DIGITS

PATH = "/v1/chat/completions"
_END = b"0\r\n\r\n"
MOST_S = 30.0  # a run that takes longer is stuck


@dataclass(slots=True)
class Heard:
    """What came back: seconds from sending to reading for each token, and to each first one."""

    late_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_s: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: int = 0
    replies: int = 0
    failed: int = 0
    took_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Stream:
    sock: socket.socket
    asked_at_s: float = 0.0
    head: bytes = b""
    chunked: bool = True
    first: bool = True
    tail: bytes = b""


def make_request(
    *, tokens: int, gap_us: int = 0, first_us: int = 0, prompt_bytes: int = 200
) -> bytes:
    """Return a request for `tokens`, one every `gap_us` after `first_us`; none is a whole reply."""
    stream = "true" if tokens else "false"
    body = '{"model":"mock","stream":%s,"messages":[{"role":"user","content":"%s"}]}'
    data = (body % (stream, ("word " * (prompt_bytes // 5)))).encode()
    head = (
        f"POST {PATH}?n={tokens}&gap_us={gap_us}&first_us={first_us} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Client:
    """Keeps `streams` requests open on connections of its own, one after another on each."""

    def __init__(self, port: int, request: bytes, streams: int, *, timed: bool = True) -> None:
        self._request = request
        self._timed = timed
        self._selector = selectors.DefaultSelector()
        self._idle = [self._connect(port) for _ in range(streams)]
        self._open = 0
        self.heard = Heard()

    def _connect(self, port: int) -> _Stream:
        sock = socket.create_connection(("127.0.0.1", port), 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = _Stream(sock)
        self._selector.register(sock, selectors.EVENT_READ, stream)
        return stream

    def run(
        self,
        *,
        requests: int,
        spread_s: float = 0.0,
        looks: Sequence[tuple[float, Callable[[Heard], None]]] = (),
    ) -> Heard:
        """Make `requests` in all; the first of each connection begin spread over `spread_s`.

        `looks` are called so many seconds after the beginning, in their order.
        """
        began_s = time.monotonic()
        looking = list(looks)
        until_s = began_s + MOST_S
        starting, self._idle = self._idle[:requests], []
        step_s = spread_s / max(len(starting), 1)
        left = requests
        while left or self._open:
            now_s = time.monotonic()
            if now_s > until_s:
                raise SystemExit(f"{self._open} replies did not end in {MOST_S:.0f} s")
            if looking and now_s >= began_s + looking[0][0]:
                looking.pop(0)[1](self.heard)
            while starting and now_s >= began_s + step_s * (requests - left):
                left -= 1
                self._ask(starting.pop())
            while left and not starting and self._idle:
                left -= 1
                self._ask(self._idle.pop())
            select.select([self._selector], [], [], step_s if starting else 1.0)
            for key, _ in self._selector.select(0):
                self._read(key.data)
        self.heard.took_s = time.monotonic() - began_s
        return self.heard

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._selector.get_map().values()):
            key.data.sock.close()
        self._selector.close()

    def _ask(self, stream: _Stream) -> None:
        stream.head, stream.first, stream.tail = b"", True, b""
        self._open += 1
        stream.asked_at_s = time.monotonic()
        stream.sock.sendall(self._request)

    def _read(self, stream: _Stream) -> None:
        data = stream.sock.recv(1 << 18)
        now_s = time.monotonic()
        if not data:
            self._end(stream, failed=True)
            self._selector.unregister(stream.sock)
            return
        if not stream.head.endswith(b"\r\n\r\n"):
            head, end, body = (stream.head + data).partition(b"\r\n\r\n")
            stream.head = head + end
            if not end:
                return
            stream.chunked = b"chunked" in stream.head.lower()
            data = body
        self._note(stream, data, now_s)
        stream.tail = (stream.tail + data)[-8:]
        if stream.tail.endswith(_END if stream.chunked else b"}}"):
            self._end(stream, failed=not stream.head.startswith(b"HTTP/1.1 200"))

    def _note(self, stream: _Stream, data: bytes, now_s: float) -> None:
        if not self._timed:
            self.heard.tokens += data.count(MARK)
            return
        for token in data.split(MARK)[1:]:
            self.heard.tokens += 1
            if len(token) < TIME_DIGITS:  # the read ended within it
                continue
            self.heard.late_s.append(now_s - float(token[:TIME_DIGITS]))
            if stream.first:
                stream.first = False
                self.heard.first_s.append(now_s - stream.asked_at_s)

    def _end(self, stream: _Stream, *, failed: bool) -> None:
        self._open -= 1
        self.heard.replies += 1
        self.heard.failed += failed
        if not failed:
            self._idle.append(stream)
