"""A request to an engine as it goes over the wire."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict

from slowtok.proxy.engine_connection import Address, EngineConnection
from slowtok.proxy.headers import Headers

PIECE_BYTES = 256 * 1024  # of a larger body; what is smaller is sent with the head, at once
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # need no word that there is no body

Body = bytes | AsyncIterator[bytes] | None


@dataclass(slots=True)
class EngineRequest:
    """One request; it can be sent again, unless its body is an iterator."""

    method: str
    line: str
    fields: Headers
    body: Body


def make_request(
    address: Address, method: str, target: str, headers: Headers, body: Body
) -> EngineRequest:
    """Return a request for `target`, a path and query that are neither decoded nor changed.

    `headers` must say nothing of the host and of how the body is framed, but may tell its length.
    """
    fields = CIMultiDict(Host=address.host)
    fields.extend(headers)
    if isinstance(body, bytes):
        fields["Content-Length"] = str(len(body))
    elif "Content-Length" not in fields:
        if body is not None:
            fields["Transfer-Encoding"] = "chunked"
        elif method not in _BODILESS:
            fields["Content-Length"] = "0"
    path = address.path + target.partition("#")[0]
    slash = "" if path.startswith("/") else "/"
    return EngineRequest(method, f"{method} {slash}{path} HTTP/1.1", fields, body)


async def write(request: EngineRequest, connection: Connection) -> asyncio.Task[None] | None:
    """Send a request: at once where it is small, else in the task that is returned.

    An engine may answer before it has read a body: nothing is waited for here.

    Raises:
        aiohttp.ClientConnectionResetError: the connection ended before.
        ValueError: a control character is in the line or a field.
    """
    body, fields = request.body, request.fields
    if body is None or (isinstance(body, bytes) and len(body) <= PIECE_BYTES):
        head = _serialize_headers(request.line, fields)  # a StreamWriter would cost more than that
        transport = connection.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection has ended")
        transport.write(head + body if body else head)
        return None
    writer = StreamWriter(cast("EngineConnection", connection.protocol), asyncio.get_running_loop())
    await writer.write_headers(request.line, fields)
    if "Transfer-Encoding" in fields:
        writer.enable_chunking()
    else:
        writer.length = int(fields["Content-Length"])
    pieces = _cut(body) if isinstance(body, bytes) else body
    return asyncio.create_task(_write_pieces(pieces, writer, connection))


async def _write_pieces(
    pieces: AsyncIterator[bytes], writer: StreamWriter, connection: Connection
) -> None:
    """Send a body as fast as the engine takes it; who waits for the reply is told if that fails."""
    protocol = cast("EngineConnection", connection.protocol)
    try:
        async for piece in pieces:
            await writer.write(piece)
        await writer.write_eof()
    except OSError as error:
        broke = aiohttp.ClientOSError(error.errno, "the request could not be sent")
        protocol.set_exception(broke, error)
    except Exception as error:  # noqa: BLE001 - whatever the client's body broke with
        protocol.set_exception(aiohttp.ClientConnectionError("the request broke off"), error)
    except BaseException:
        connection.close()
        raise


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    """Cut a large body, so that sending it neither copies it whole nor holds up other streams."""
    for begin in range(0, len(body), PIECE_BYTES):
        yield body[begin : begin + PIECE_BYTES]
