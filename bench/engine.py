"""A mock llama-server: paced tokens, each with the time of its sending, one write per token.

    python -m bench.engine PORT

What a request wants is in its query, so that no body has to be parsed: `n` tokens, one every
`gap_us`, the first after `first_us`, the time that a prefill would take; `n=0` is a whole reply.
It says what it is as llama-server does (/props, /slots, /v1/models, /metrics, /health): an
engine that nothing is known of would spare slowtok most of its work. Times are the monotonic
clock's, which all processes of a machine share.
"""

import contextlib
import heapq
import json
import os
import re
import select
import selectors
import signal
import socket
import sys
import time

TIME_DIGITS = 17
MARK = b'"content":"'
WHOLE_END = b"}}"
MODEL, BUILD, SLOTS, CONTEXT = "mock-7b-q4", "b6940-c5023daf6", 64, 8192
_TAIL = (
    b'"created":1795149224,"id":"chatcmpl-gZlHWpa4TbT1l20XRMkZzbVr61TYxub1","model":"%b",'
    b'"system_fingerprint":"%b","object":"chat.completion%%b"' % (MODEL.encode(), BUILD.encode())
)
_EVENT = b'data: {"choices":[{"finish_reason":%b,"index":0,"delta":{%b}}],' + _TAIL % b".chunk"
_TIMINGS = (
    b',"timings":{"cache_n":0,"prompt_n":26,"prompt_ms":%.3f,"predicted_n":%d,"predicted_ms":%.3f}}'
)
_FINISH = _EVENT % (b'"stop"', b"") + _TIMINGS + b"\n\n"
WHOLE_TOKENS = 48
_WHOLE = (
    b'{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"%b"}}'
    b"],"
    % (b"A reply of some length, " * WHOLE_TOKENS)
    + _TAIL % b""
    + b',"usage":{"completion_tokens":%d,"prompt_tokens":26,"total_tokens":%d}'
    % (WHOLE_TOKENS, WHOLE_TOKENS + 26)
    + _TIMINGS % (1.0, WHOLE_TOKENS, 1.0)
)
_WANTED = re.compile(rb"POST \S*[?&]n=(\d+)&gap_us=(\d+)&first_us=(\d+)")
_PATH = re.compile(rb"GET ([^ ?]+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def _reply(body: object, status: str = "200 OK", kind: str = "application/json") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nServer: llama.cpp\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _slots(busy: int) -> bytes:
    slot = {"n_ctx": CONTEXT, "speculative": False}
    return _reply([{"id": i, **slot, "is_processing": i < busy} for i in range(SLOTS)])


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
) + _chunk(_EVENT % (b"null", b'"role":"assistant","content":null') + b"}\n\n")
_TOKEN = _chunk(_EVENT % (b"null", MARK + b"0" * TIME_DIGITS + b'"') + b"}\n\n")
_TOKEN = _TOKEN.replace(b"0" * TIME_DIGITS, b"%017.7f")
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
_WHOLE_REPLY = _reply(_WHOLE)
_NOT_FOUND = _reply({"error": {"code": 404, "type": "not_found_error"}}, "404 Not Found")
_FACTS = {
    b"/health": _reply({"status": "ok"}),
    b"/props": _reply(
        {
            "default_generation_settings": {"id": 0, "n_ctx": CONTEXT, "params": {"top_k": 40}},
            "total_slots": SLOTS,
            "model_alias": MODEL,
            "model_path": f"/models/{MODEL}.gguf",
            "modalities": {"vision": False, "audio": False},
            "chat_template": "{{ messages }}",
            "build_info": BUILD,
        }
    ),
    b"/v1/models": _reply(
        {
            "object": "list",
            "data": [
                {
                    "id": MODEL,
                    "object": "model",
                    "owned_by": "llamacpp",
                    "meta": {
                        "n_vocab": 152064,
                        "n_ctx_train": 32768,
                        "n_embd": 3584,
                        "n_params": 7615616512,
                        "size": 4677120000,
                    },
                }
            ],
        }
    ),
}
_SLOTS_BY_BUSY = [_slots(busy) for busy in range(SLOTS + 1)]
_METRICS = b"""# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total %d
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing %d
"""


class _Connection:
    """One client: collects a request, then owes it tokens."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unread = b""
        self.unsent = b""
        self.left = 0
        self.tokens = 0
        self.first_s = 0.0
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
        self._due: list[_Connection] = []  # one entry for each stream, so its length is how many
        self._tokens = 0

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
        request, client.unread = client.unread, b""
        wanted = _WANTED.match(request)
        if wanted is None:
            self._send(client, self._fact(request))
        elif wanted[1] == b"0":
            self._send(client, _WHOLE_REPLY)
        else:
            client.left = client.tokens = int(wanted[1])
            client.gap_s, client.first_s = int(wanted[2]) / 1e6, int(wanted[3]) / 1e6
            client.due_s = time.monotonic() + client.first_s
            heapq.heappush(self._due, client)

    def _fact(self, request: bytes) -> bytes:
        """Return what llama-server would say of itself at this path."""
        found = _PATH.match(request)
        path = found[1] if found else b""
        if path == b"/slots":
            return _SLOTS_BY_BUSY[min(len(self._due), SLOTS)]
        if path == b"/metrics":
            return _reply(_METRICS % (self._tokens, len(self._due)), kind="text/plain")
        return _FACTS.get(path, _NOT_FOUND)

    def _tick(self, client: _Connection) -> None:
        """Send the next token; with the first one the head, after the last one the end."""
        if client.closed:
            return
        if client.left == client.tokens:
            self._send(client, _STREAM_HEAD)
        client.left -= 1
        self._tokens += 1
        self._send(client, _TOKEN % time.monotonic())
        if client.left:
            client.due_s += client.gap_s
            heapq.heappush(self._due, client)
            return
        decode_ms = client.tokens * client.gap_s * 1e3
        finish = _FINISH % (client.first_s * 1e3, client.tokens, decode_ms)
        self._send(client, _chunk(finish) + _END)

    def _send(self, client: _Connection, data: bytes) -> None:
        """Send, or keep what the socket does not take: the tokens after it still come in time."""
        if client.closed:
            return
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

    def _close(self, client: _Connection) -> None:
        if not client.closed:
            client.closed = True
            self._selector.unregister(client.sock)
            client.sock.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Engine(int(sys.argv[1])).serve()
