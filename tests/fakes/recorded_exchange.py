"""Records one exchange with a real engine, as `tests/data/streams` keeps them."""

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 120.0
READ_BYTES = 1 << 16


def record_exchange(
    file: Path,
    url: str,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    reads: int | None = None,
) -> None:
    """Send a request and write what came back, read by read; after `reads` of them hang up."""
    address = urlsplit(url)
    assert address.hostname is not None
    sent = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n"
    lines: list[dict[str, Any]] = [{"request": {"method": method, "path": path, "body": body}}]
    with socket.create_connection((address.hostname, address.port or 80), PATIENCE_S) as wire:
        sent_s = time.monotonic()
        wire.sendall(head.encode() + b"\r\n" + sent)
        with contextlib.suppress(ConnectionResetError):
            while data := wire.recv(READ_BYTES):
                at_s = round(time.monotonic() - sent_s, 6)
                lines.append({"at_s": at_s, "bytes": data.decode()})
                if reads is not None and len(lines) > reads:
                    break
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
