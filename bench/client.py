"""The load client: opens streams, reads them as they come, notes how late each token is."""

import select
import selectors
import socket
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.engine import MARK, TIME_DIGITS, WHOLE_END

PATH = "/v1/chat/completions"
_END = b"0\r\n\r\n"
_TAIL_BYTES = len(_END)
MAX_S = 30.0  # a run that takes longer is stuck


@dataclass(slots=True)
class Heard:
    """What came back: seconds from sending to reading for each token, and to each first one."""

    late_s: "array[float]" = field(default_factory=lambda: array("d"))
    first_s: "array[float]" = field(default_factory=lambda: array("d"))
    replies: int = 0
    failed: int = 0


@dataclass(slots=True, eq=False)
class _Stream:
    sock: socket.socket
    asked_at_s: float = 0.0
    head: bytes = b""
    rest: bytes = b""  # the last line, as far as it has come
    end: bytes = b""
    tokens: int = 0


def make_request(
    *, tokens: int, gap_us: int = 0, first_us: int = 0, prompt_bytes: int = 200
) -> bytes:
    """Return a request for `tokens`, one every `gap_us` after `first_us`; none is a whole reply."""
    stream = "true" if tokens else "false"
    body = '{"model":"mock-7b-q4","stream":%s,"messages":[{"role":"user","content":"%s"}]}'
    data = (body % (stream, ("word " * (prompt_bytes // 5)))).encode()
    head = (
        f"POST {PATH}?n={tokens}&gap_us={gap_us}&first_us={first_us} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Client:
    """Keeps `streams` requests open on connections of its own, one after another on each.

    A reply fails that has another status than 200, or more or fewer tokens than `tokens`.
    """

    def __init__(self, port: int, request: bytes, streams: int, *, tokens: int) -> None:
        self._request = request
        self._tokens = tokens
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
        requests: int = sys.maxsize,
        seconds: float = MAX_S,
        ramp_s: float = 0.0,
        looks: Sequence[tuple[float, Callable[[Heard], None]]] = (),
    ) -> Heard:
        """Make so many requests, or as many as begin within so many seconds; then close all.

        The first of each connection begin spread over `ramp_s`; `looks` are called so many seconds
        after the beginning, in their order. What still runs when the time is up is cut off.
        """
        began_s = time.monotonic()
        looking = list(looks)
        starting, self._idle = self._idle[:requests], []
        step_s = ramp_s / max(len(starting), 1)
        left = requests
        while left or self._open:
            passed_s = time.monotonic() - began_s
            while looking and passed_s >= looking[0][0]:
                looking.pop(0)[1](self.heard)
            if passed_s > seconds:
                break
            while starting and passed_s >= step_s * (requests - left):
                left -= 1
                self._ask(starting.pop())
            while left and not starting and self._idle:
                left -= 1
                self._ask(self._idle.pop())
            select.select([self._selector], [], [], step_s if starting else 0.05)
            for key, _ in self._selector.select(0):
                self._read(key.data)
        if seconds == MAX_S and self._open:
            raise SystemExit(f"{self._open} replies did not end in {MAX_S:.0f} s")
        for key in list(self._selector.get_map().values()):
            key.data.sock.close()
        self._selector.close()
        return self.heard

    def _ask(self, stream: _Stream) -> None:
        stream.head, stream.rest, stream.end, stream.tokens = b"", b"", b"", 0
        self._open += 1
        stream.asked_at_s = time.monotonic()
        stream.sock.sendall(self._request)

    def _read(self, stream: _Stream) -> None:
        try:
            data = stream.sock.recv(1 << 18)
        except OSError:
            data = b""
        now_s = time.monotonic()
        if not data:
            self._end(stream, failed=True)
            self._selector.unregister(stream.sock)
            return
        if not stream.head.endswith(b"\r\n\r\n"):
            head, end, data = (stream.head + data).partition(b"\r\n\r\n")
            stream.head = head + end
            if not end:
                return
        self._note(stream, data, now_s)
        stream.end = (stream.end + data)[-_TAIL_BYTES:]
        if stream.end.endswith(_END) or (not self._tokens and stream.end.endswith(WHOLE_END)):
            whole = stream.head.startswith(b"HTTP/1.1 200") and stream.tokens == self._tokens
            self._end(stream, failed=not whole)

    def _note(self, stream: _Stream, data: bytes, now_s: float) -> None:
        if not self._tokens:
            return
        lines = stream.rest + data
        upto = lines.rfind(b"\n") + 1
        stream.rest = lines[upto:]
        late_s = self.heard.late_s
        for token in lines[:upto].split(MARK)[1:]:
            late_s.append(now_s - float(token[:TIME_DIGITS]))
            if not stream.tokens:
                self.heard.first_s.append(now_s - stream.asked_at_s)
            stream.tokens += 1

    def _end(self, stream: _Stream, *, failed: bool) -> None:
        self._open -= 1
        self.heard.replies += 1
        self.heard.failed += failed
        if not failed:
            self._idle.append(stream)
