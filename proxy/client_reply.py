"""A reply to a client: the head is what it is given, and no field is put in unasked but the date.

aiohttp's server sends it by `prepare` and `write_eof`, unless that has been done before.
"""

from http import HTTPStatus

from aiohttp import ClientConnectionResetError
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import must_be_empty_body, rfc822_formatted_time, should_remove_content_length
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict

from slowtok.proxy.client_request import ClientRequest

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class ClientReply:
    """A reply: with its whole `body`, or where that is None to be written piece by piece."""

    __slots__ = ("_writer", "body", "headers", "keep_alive", "reason", "status")

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
        self._writer: AbstractStreamWriter | None = None

    def force_close(self) -> None:
        """End the connection with this reply."""
        self.keep_alive = False

    async def prepare(self, request: ClientRequest) -> None:
        """Send the head, and a whole body with it. Raises as `write`."""
        if self._writer is not None:
            return
        writer = self._writer = request.writer
        if self.keep_alive is None:
            self.keep_alive = request.keep_alive
        self._frame(request, writer)
        version, headers = request.version, self.headers
        if "Date" not in headers:
            headers["Date"] = rfc822_formatted_time()
        if not self.keep_alive:
            if version == HttpVersion11:
                headers["Connection"] = "close"
        elif version == HttpVersion10:
            headers["Connection"] = "keep-alive"
        line = f"HTTP/{version.major}.{version.minor} {self.status} {self.reason}"
        if self.body is None:
            await writer.write_headers(line, headers)
            writer.send_headers()
            return
        whole = _serialize_headers(line, headers) + self.body
        self.body = b""  # aiohttp keeps a reply for as long as its connection
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has gone")
        transport.write(whole)  # its writer would cost more than this
        if request.protocol.writing_paused:
            await writer.drain()

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body; waits for a client that is far behind.

        Raises:
            ConnectionError: the client has gone.
        """
        if self._writer is not None:
            await self._writer.write(piece)

    async def write_eof(self) -> None:
        """End a body that was sent in pieces. Raises as `write`."""
        if self._writer is not None and self.body is None:
            await self._writer.write_eof()

    def _frame(self, request: ClientRequest, writer: AbstractStreamWriter) -> None:
        """Say how long the body is: by its length, by chunks, or by the connection's end."""
        status, headers = self.status, self.headers
        if self.body is not None:
            headers["Content-Length"] = str(len(self.body))
        if must_be_empty_body(request.method, status):
            if self.body:
                self.body = b""  # its length is told all the same
            if should_remove_content_length(request.method, status):
                headers.popall("Content-Length", None)
            writer.length = 0
        elif "Content-Length" in headers:
            writer.length = int(headers["Content-Length"])
        elif request.version == HttpVersion11:
            writer.enable_chunking()
            headers["Transfer-Encoding"] = "chunked"
        else:
            self.keep_alive = False
