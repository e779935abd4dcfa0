"""A client that asks for a stream and then does not read for a while."""

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

RECEIVE_BUFFER_BYTES = 4096  # what the kernel takes in the client's stead


def read_slowly(url: str, body: Mapping[str, Any], wait: Callable[[], None]) -> str:
    """Ask, read the head, `wait`, read the rest; return the `slowtok-id`."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Connection: close\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        client.connect((parts.hostname, parts.port))
        client.sendall(head.encode() + data)
        received = b""
        while b"\r\n\r\n" not in received:
            received += client.recv(4096)
        wait()
        while client.recv(65536):
            pass
    lines = received.split(b"\r\n\r\n")[0].decode("latin-1").splitlines()
    fields = dict(line.split(": ", 1) for line in lines[1:])
    return fields["slowtok-id"]
