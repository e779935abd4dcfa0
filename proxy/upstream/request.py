"""A request to an engine, in wire format."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict

from slowtok.proxy.http.headers import Headers, as_bytes
from slowtok.proxy.upstream.connection import EngineConnection
from slowtok.proxy.upstream.connector import Address

PIECE_BYTES = 256 * 1024  # of a larger body; what is smaller is sent with the head, at once
_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # need no word that there is no body

Body = bytes | AsyncIterator[bytes] | None


@dataclass(slots=True)
class EngineRequest:
    """One request to an engine; it can be sent again unless its body is an iterator."""

    method: str
    line: str
    fields: Headers
    body: Body


def make_request(
    address: Address, method: str, target: str, headers: Headers, body: Body
) -> EngineRequest:
    """Return a request for `target`, a path and query that are neither decoded nor changed.

    `headers` must not contain the host or the framing of the body, except its length.
    """
    fields = CIMultiDict(Host=address.host)
    fields.extend(headers)
    if isinstance(body, bytes):
        if fields.get("Content-Length") != str(len(body)):
            fields["Content-Length"] = str(len(body))
    elif "Content-Length" not in fields:
        if body is not None:
            fields["Transfer-Encoding"] = "chunked"
        elif method not in _BODILESS:
            fields["Content-Length"] = "0"
    path = address.path + target.partition("#")[0]
    slash = "" if path.startswith("/") else "/"
    return EngineRequest(method, f"{method} {slash}{path} HTTP/1.1", fields, body)


async def write(request: EngineRequest, connection: EngineConnection) -> asyncio.Task[None] | None:
    """Send a request: a small one at once, a larger body in the task that is returned.

    An engine may answer before it has read the body, so nothing waits for it here.

    Raises:
        aiohttp.ClientConnectionResetError: the connection had ended.
        ValueError: the request line or a field holds a control character.
    """
    body, fields = request.body, request.fields
    head = as_bytes(request.line, fields)
    transport = connection.transport
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the connection has ended")
    if body is None or (isinstance(body, bytes) and len(body) <= PIECE_BYTES):
        transport.write(head + body if body else head)
        return None
    transport.write(head)
    pieces = _cut(body) if isinstance(body, bytes) else body
    sending = _write_pieces(pieces, connection, transport, chunked="Transfer-Encoding" in fields)
    return asyncio.create_task(sending)


async def _write_pieces(
    pieces: AsyncIterator[bytes],
    connection: EngineConnection,
    transport: asyncio.Transport,
    *,
    chunked: bool,
) -> None:
    """Send a body as fast as the engine reads it; whoever waits for the reply gets a failure."""
    try:
        async for piece in pieces:
            if piece:
                transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await connection.drain()
        if chunked:
            transport.write(b"0\r\n\r\n")
        await connection.drain()
    except OSError as error:
        connection.fail(_because(aiohttp.ClientOSError(error.errno, "it could not be sent"), error))
    except Exception as error:  # noqa: BLE001 - whatever the client's body broke with
        connection.fail(_because(aiohttp.ClientConnectionError("the request broke off"), error))
    except BaseException:
        connection.close()
        raise


def _because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    """Yield a large body in pieces: it is not copied as a whole, and other streams go on."""
    for begin in range(0, len(body), PIECE_BYTES):
        yield body[begin : begin + PIECE_BYTES]
