"""Connections from clients: aiohttp's own server protocol with two corrections."""

import asyncio
from typing import Any

from aiohttp import StreamReader, web

from slowtok.proxy.http.aiohttp_private import (
    body_of_last,
    hold_heads,
    is_answering,
    requests_read,
    taken,
)

MAX_HEAD_FIELDS = 4  # a head may be as long as this many fields of the greatest length
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class ClientConnection(web.RequestHandler):
    """One connection from a client; parses its requests."""

    __slots__ = ("_head_bytes", "_last_body", "_was_paused")

    def __init__(self, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._was_paused = False
        self._head_bytes = 0  # of a head that has begun
        self._last_body: StreamReader | None = None  # of the last request

    def data_received(self, data: bytes) -> None:
        """Parse bytes; a head that grows beyond the limit is refused, however many fields it has.

        aiohttp limits the size of each field and their number, which allows 128 times as much.
        """
        known = requests_read(self)
        super().data_received(data)
        if requests_read(self) != known:
            self._head_bytes = 0
            hold_heads(self)
            self._last_body = body_of_last(self) or self._last_body
        elif self._last_body is None or self._last_body.is_eof():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_FIELDS * self.max_field_size:
                self._refuse_head()

    def _refuse_head(self) -> None:
        if self.transport is not None and not is_answering(self):
            self.transport.write(_TOO_LARGE)
        self.force_close()

    def pause_reading(self) -> None:
        """Pause reading and remember it, so that `resume_reading` can tell."""
        self._was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume reading if it was paused.

        aiohttp's reader calls this after each piece, paused or not. Unchecked, each call would
        parse again what has been parsed, for every request with a body.
        """
        if self._was_paused:
            super().resume_reading(resume_parser)


class ClientServer(web.Server):
    """aiohttp's server with `ClientConnection`s, to which `options` are passed.

    A request's handler is cancelled when its client disconnects.
    """

    def __init__(self, handle: Any, *, request_factory: Any, **options: Any) -> None:
        def make(head: Any, *rest: Any) -> Any:
            return request_factory(taken(head), *rest)

        super().__init__(handle, request_factory=make, handler_cancellation=True)
        self._options = options

    def __call__(self) -> ClientConnection:
        """Return the protocol for a connection that was accepted."""
        return ClientConnection(self, loop=asyncio.get_running_loop(), **self._options)
