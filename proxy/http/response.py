"""A reply to a client: sends exactly the given header fields, and adds only `Date`.

aiohttp's server sends it by `prepare` and `write_eof`, unless that has been done before. The
proxy's own errors are such replies too, in the format that OpenAI clients understand.
"""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from aiohttp import ClientConnectionResetError, HttpVersion10, HttpVersion11, web
from multidict import CIMultiDict

from slowtok.proxy.http import headers as fields
from slowtok.proxy.http.request import ClientRequest

if TYPE_CHECKING:
    from slowtok.proxy.http.aiohttp_private import StreamWriter

_STATUSES_WITHOUT_BODY = frozenset({204, 304})  # an interim reply never passes
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class ClientReply:
    """A reply to a client, with its complete `body`, or None to write it piece by piece."""

    __slots__ = (
        "_has_ended",
        "_writer",
        "body",
        "headers",
        "is_chunked",
        "keep_alive",
        "reason",
        "status",
    )

    def __init__(
        self,
        status: int,
        headers: CIMultiDict[str],
        body: bytes | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        self.status = status
        self.reason = _REASONS.get(status, "") if reason is None else reason
        self.headers = headers
        self.body = body
        self.keep_alive: bool | None = None  # as the request wants it
        self._has_ended = self.is_chunked = False
        self._writer: StreamWriter | None = None

    def force_close(self) -> None:
        """Close the connection after this reply."""
        self.keep_alive = False

    async def prepare(self, request: ClientRequest) -> None:
        """Send the head, and the body if it is complete. Raises as `write`."""
        if self._writer is not None:
            return
        writer = self._writer = request.writer
        if self.keep_alive is None:
            self.keep_alive = request.keep_alive
        self._frame(request, writer)
        version, headers = request.version, self.headers
        if "Date" not in headers:
            headers["Date"] = _date(int(time.time()))
        if not self.keep_alive:
            if version == HttpVersion11:
                headers["Connection"] = "close"
        elif version == HttpVersion10:
            headers["Connection"] = "keep-alive"
        line = f"HTTP/{version.major}.{version.minor} {self.status} {self.reason}"
        head = fields.as_bytes(line, headers)
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has gone")
        transport.write(head + self.body if self.body else head)  # a writer would cost more
        writer.output_size += len(head)  # by which others know that a reply has begun
        if self.body is None:
            headers.clear()  # a stream may last for hours
            return
        self.body = b""  # aiohttp keeps a reply for as long as its connection
        await writer.drain()

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body; waits while the client is far behind.

        Raises:
            ConnectionError: the client has disconnected.
        """
        if self._writer is not None:
            await self._writer.write(piece)

    async def write_eof(self, trailer: bytes = b"") -> None:
        """End a body sent in pieces, with a trailer if it is chunked. Raises as `write`."""
        writer = self._writer
        if writer is None or self.body is not None or self._has_ended:
            return
        self._has_ended = True
        transport = writer.transport
        if trailer and self.is_chunked and transport is not None and not transport.is_closing():
            transport.write(b"0\r\n%b\r\n" % trailer)
        else:
            await writer.write_eof()

    def _frame(self, request: ClientRequest, writer: "StreamWriter") -> None:
        """Set the framing of the body: by length, by chunks, or by the end of the connection."""
        status, headers = self.status, self.headers
        if self.body is not None:
            headers["Content-Length"] = str(len(self.body))
        if request.method == "HEAD" or status in _STATUSES_WITHOUT_BODY:
            if self.body:
                self.body = b""  # its length is told all the same
            if status in _STATUSES_WITHOUT_BODY:
                headers.popall("Content-Length", None)
            writer.length = 0
        elif "Content-Length" in headers:
            writer.length = int(headers["Content-Length"])
        elif request.version == HttpVersion11:
            self.is_chunked = True
            writer.enable_chunking()
            headers["Transfer-Encoding"] = "chunked"
        else:
            self.keep_alive = False


@lru_cache(1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)


def error_response(status: int, message: str, code: str) -> ClientReply:
    """Return an OpenAI-style JSON error. `message` says what failed and what to check.

    A 503 of the proxy itself is brief, so it carries `Retry-After: 1`.
    """
    body = {"error": {"message": message, "type": "slowtok_error", "param": None, "code": code}}
    fields = CIMultiDict({"Content-Type": "application/json; charset=utf-8"})
    if status == 503:
        fields["Retry-After"] = "1"
    return ClientReply(status, fields, orjson.dumps(body))


def error_page(status: int, message: str, code: str) -> web.Response:
    """Return an OpenAI-style JSON error as aiohttp's response, for one of the proxy's own pages."""
    return as_page(error_response(status, message, code))


def as_page(reply: ClientReply) -> web.Response:
    """Convert a complete reply to aiohttp's response."""
    return web.Response(status=reply.status, headers=reply.headers, body=reply.body)
