"""Admission of connections: beyond the limit, a client gets a 503 at once.

A proxy that ran out of file descriptors could neither accept a client nor reach an engine, so it
admits no more clients than it can serve.
"""

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Callable
from typing import cast

from aiohttp import web

from slowtok.proxy.http.response import error_response

if sys.platform != "win32":
    import resource

MAX_DESCRIPTORS = 65_536  # asked of the system; more would only cost memory in its tables
OWN_DESCRIPTORS = 64  # files, pipes, looks at engines; counted: 25 to 40
MAX_REFUSALS = 32  # that are being told so at the same time; what comes beyond is closed at once
SILENT_KEPT = 64  # connections that may be gone by now, beside as many as are here
REFUSAL_S = 2.0  # at most, until a refused client has read why


def raise_descriptor_limit(wanted: int) -> int:
    """Raise the limit of open files; return how many of `wanted` clients it allows.

    Each client may need a second descriptor, for its engine.
    """
    if sys.platform == "win32":
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < highest:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
            soft = highest
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, (soft - OWN_DESCRIPTORS - MAX_REFUSALS) // 2), 1)


def overload_reply(limit: int) -> bytes:
    """Return the complete HTTP reply to a connection beyond the limit."""
    why = (
        f"too many connections (limit {limit}): retry shortly, or raise max_connections and the"
        " limit of open files (ulimit -n)"
    )
    body = error_response(503, why, "overloaded").body or b""
    head = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\n"
        b"Content-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head % len(body) + body


class ConnectionLimiter:
    """Protocol factory for new connections: the server's protocol, or a refusal beyond `most`."""

    def __init__(
        self,
        server: web.Server,
        most: int,
        *,
        head_timeout_s: float,
        log_event: Callable[..., None],
    ) -> None:
        self.refused = 0
        self._is_full = False
        self._server = server
        self._most = most
        self._refusal = overload_reply(most)
        self._head_timeout_s = head_timeout_s
        self._log_event = log_event
        self._silent_since_s: dict[object, float] = {}  # connections that asked for nothing yet
        self._refusing: set[_Refusal] = set()
        self._arriving = 0  # taken in within this turn of the loop: the server counts them after it

    def __call__(self) -> asyncio.BaseProtocol:
        """Return the protocol for one connection that has just been accepted."""
        if len(self._server.connections) + self._arriving < self._most:
            self._is_full = False
            self._note_arrival()
            protocol = self._server()
            self._silent_since_s[protocol] = time.monotonic()
            self._forget_gone()
            return cast(asyncio.BaseProtocol, protocol)
        self._close_silent()
        if not self._is_full:
            self._log_event("connections-refused", most=self._most)
        self._is_full = True
        self.refused += 1
        return _Refusal(self._refusing, self._refusal)

    def note_request(self, protocol: object) -> None:
        """Note that a connection has sent the head of a request."""
        self._silent_since_s.pop(protocol, None)

    def _note_arrival(self) -> None:
        if not self._arriving:
            asyncio.get_running_loop().call_soon(self._forget_arrivals)
        self._arriving += 1

    def _forget_arrivals(self) -> None:
        self._arriving = 0

    def _close_silent(self) -> None:
        """Close connections that have sent nothing for too long: others need their place."""
        before_s = time.monotonic() - self._head_timeout_s
        for protocol in self._server.connections:
            if self._silent_since_s.get(protocol, math.inf) < before_s:
                protocol.force_close()

    def _forget_gone(self) -> None:
        """Drop entries of connections that closed before a request; each keeps its buffers."""
        connected = self._server.connections
        if len(self._silent_since_s) > 2 * len(connected) + SILENT_KEPT:
            self._silent_since_s = {
                p: self._silent_since_s[p] for p in connected if p in self._silent_since_s
            }


class _Refusal(asyncio.Protocol):
    """Answers the first bytes of a request with a 503, and closes once the client could read it.

    A connection that is closed with bytes unread is reset, which may lose the reply. So whatever
    still arrives is read and discarded.
    """

    def __init__(self, refusing: "set[_Refusal]", reply: bytes) -> None:
        self._refusing, self._reply = refusing, reply
        self._has_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._refusing) >= MAX_REFUSALS:
            self._transport.abort()
            return
        self._refusing.add(self)
        self._timer = asyncio.get_running_loop().call_later(REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._has_answered and not self._transport.is_closing():
            self._has_answered = True
            self._transport.write(self._reply)
            self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._refusing:
            self._refusing.discard(self)
            self._timer.cancel()
