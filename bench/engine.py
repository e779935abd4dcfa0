"""A mock llama-server: paced tokens, each with the time of its sending, one write per token.

    python -m bench.engine PORT

What a request wants is in its query, so that no body has to be parsed: `n` tokens, one
every `gap_us`, or without a pause at 0; `n=0` is a whole reply. `first_us` is the time that a
prefill would take. Times are the monotonic clock's,
which all processes of a machine share.
"""

import contextlib
import heapq
import os
import re
import select
import selectors
import signal
import socket
import sys
import time
from typing import Any

TIME_DIGITS = 17
MARK = b'"content":"'
_EVENT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"%017.7f"}}],'
    b'"created":1795149224,"id":"chatcmpl-gZlHWpa4TbT1l20XRMkZzbVr61TYxub1",'
    b'"model":"mock-8B-Q4_K_M.gguf","system_fingerprint":"b9842-mock",'
    b'"object":"chat.completion.chunk"}\n\n'
)
_TIMINGS = (
    b'"timings":{"cache_n":0,"prompt_n":9,"prompt_ms":1.0,"predicted_n":%d,"predicted_ms":%.1f}}'
)
_FINISH = (
    b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1795149224,'
    b'"id":"chatcmpl-1","model":"mock","object":"chat.completion.chunk",' + _TIMINGS + b"\n\n"
)
WHOLE = (
    b'{"choices":[{"finish_reason":"stop","index":0,"message":{"content": "hi"}}],'
    b'"model":"mock","object":"chat.completion","usage":{"completion_tokens":2,"prompt_tokens":9},'
    + _TIMINGS
    % (2, 1.0)
)
_HEAD = b"HTTP/1.1 %s\r\nServer: llama.cpp\r\nContent-Type: %s\r\n"
_STREAM_HEAD = _HEAD % (b"200 OK", b"text/event-stream") + b"Transfer-Encoding: chunked\r\n\r\n"
_JSON_HEAD = b"application/json\r\nContent-Length: %d"
_WHOLE_REPLY = _HEAD % (b"200 OK", _JSON_HEAD % len(WHOLE)) + b"\r\n" + WHOLE
_NOT_FOUND = _HEAD % (b"404 Not Found", _JSON_HEAD % 2) + b"\r\n{}"
_WANTED = re.compile(rb"POST \S*[?&]n=(\d+)&gap_us=(\d+)&first_us=(\d+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _chunk(_EVENT % 0.0).replace(b"%017.7f" % 0.0, b"%017.7f")


class _Connection:
    """One client: collects a request, then owes it tokens."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unread = b""
        self.unsent = b""
        self.left = 0
        self.tokens = 0
        self.gap_s = 0.0
        self.due_s = 0.0
        self.closed = False

    def __lt__(self, other: "_Connection") -> bool:
        return self.due_s < other.due_s


class Engine:
    """Serves until the process is ended."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._due: list[_Connection] = []

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            self._wait()
            for key, events in self._selector.select(0):
                self._handle(key, events)
            now_s = time.monotonic()
            while self._due and self._due[0].due_s <= now_s:
                self._tick(heapq.heappop(self._due))

    def _wait(self) -> None:
        """Sleep until something happens; a selector itself would round up to milliseconds."""
        pause_s = max(self._due[0].due_s - time.monotonic(), 0) if self._due else None
        if pause_s != 0:
            select.select([self._selector], [], [], pause_s)

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock, _ = self._listener.accept()
                    sock.setblocking(False)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))
            return
        client: _Connection = key.data
        if events & selectors.EVENT_WRITE:
            self._flush(client)
        if events & selectors.EVENT_READ and not client.closed:
            self._read(client)

    def _read(self, client: _Connection) -> None:
        try:
            data = client.sock.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self._close(client)
            return
        client.unread += data
        head_end = client.unread.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(client.unread, 0, max(head_end, 0))
        if head_end < 4 or len(client.unread) < head_end + (int(length[1]) if length else 0):
            return
        wanted = _WANTED.match(client.unread)
        client.unread = b""
        self._answer(client, wanted)

    def _answer(self, client: _Connection, wanted: Any) -> None:
        if wanted is None:
            self._send(client, _NOT_FOUND)
        elif wanted[1] == b"0":
            self._send(client, _WHOLE_REPLY)
        else:
            client.left = client.tokens = int(wanted[1])
            client.gap_s = int(wanted[2]) / 1e6
            client.due_s = time.monotonic() + int(wanted[3]) / 1e6
            self._send(client, _STREAM_HEAD)
            if client.gap_s:
                heapq.heappush(self._due, client)
            else:
                self._tick(client)

    def _tick(self, client: _Connection) -> None:
        """Send the next token, or all at once where no pause is wanted."""
        while client.left and not client.closed:
            if client.unsent:
                return  # goes on when the socket takes more
            client.left -= 1
            self._send(client, _TOKEN % time.monotonic())
            if client.gap_s:
                client.due_s += client.gap_s
                heapq.heappush(self._due, client)
                return
        if not client.closed:
            finish = _FINISH % (client.tokens, client.tokens * client.gap_s * 1e3)
            self._send(client, _chunk(finish) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _send(self, client: _Connection, data: bytes) -> None:
        try:
            sent = 0 if client.unsent else client.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(client)
            return
        if sent < len(data):
            client.unsent += data[sent:]
            self._selector.modify(client.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, client)

    def _flush(self, client: _Connection) -> None:
        data, client.unsent = client.unsent, b""
        self._selector.modify(client.sock, selectors.EVENT_READ, client)
        self._send(client, data)
        if client.left and not client.unsent and not client.gap_s:
            self._tick(client)

    def _close(self, client: _Connection) -> None:
        if not client.closed:
            client.closed = True
            self._selector.unregister(client.sock)
            client.sock.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Engine(int(sys.argv[1])).serve()
