"""Self-test at start: does slowtok work with the installed aiohttp and this event loop?

It checks that the private names slowtok relies on exist, and relays one stream through the real
classes over loopback and a socket pair. What comes out must equal what went in, byte by byte.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import aiohttp
from multidict import CIMultiDict

from slowtok.proxy.http.aiohttp_private import missing
from slowtok.proxy.http.connection import ClientServer
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.relay.streaming import pass_chunks
from slowtok.proxy.upstream.client import make_session, send

LIMIT_S = 5.0  # it takes some ms; a machine that stood still is no reason to be slow from now on
_QUESTION = b"GET /self-test HTTP/1.1\r\nHost: localhost\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_READS = (  # what the engine says, each time when the last has come: what it holds of the body
    (b"5\r\ntoken\r\n", b"token"),
    (b"2\r\nab\r\n1\r\nc\r\n", b"abc"),
    (b"6\r\nhal", b"hal"),
    (b"ves\r\n", b"ves"),
)
_END = b"0\r\n\r\n"


class UnusableLibraryError(Exception):
    """slowtok cannot serve with the installed libraries; the text says why."""


async def fast_path_works(log_event: Callable[..., None]) -> bool:
    """Return True if streams may use the fast path; otherwise log the reason with `log_event`.

    Raises:
        UnusableLibraryError: the installed libraries cannot be used at all.
    """
    gone = list(missing())
    if needed := [used.name for used in gone if not used.is_for_speed]:
        raise _unusable(f"lacks {' and '.join(needed)} in the form that slowtok uses")
    why = f"lacks {gone[0].name}" if gone else await _fault(use_fast_path=True)
    if why is None:
        return True
    if (broken := await _fault(use_fast_path=False)) is not None:
        raise _unusable(broken)
    log_event("fast-path-off", library=f"aiohttp {aiohttp.__version__}", why=why)
    return False


def _unusable(why: str) -> UnusableLibraryError:
    return UnusableLibraryError(
        f"aiohttp {aiohttp.__version__} cannot be used: it {why}; install the version that slowtok"
        " asks for (pip install --upgrade slowtok)"
    )


async def _fault(*, use_fast_path: bool) -> str | None:
    """Relay a test stream; return what was wrong with it, or None."""
    broke: list[str] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        broke.append(str(context.get("exception") or context["message"])[:80])

    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(note)
    try:
        async with asyncio.timeout(LIMIT_S):
            is_right = await _stream_is_right(broke, use_fast_path=use_fast_path)
    except Exception as error:  # noqa: BLE001 - whatever another version may do
        return f"breaks a stream ({broke[0] if broke else type(error).__name__})"
    finally:
        loop.set_exception_handler(before)
    return None if is_right and not broke else "changes the bytes of a stream"


async def _stream_is_right(broke: list[str], *, use_fast_path: bool) -> bool:
    """Relay a test stream read by read; return True if each read reaches the client correctly."""
    engine_reads: asyncio.Queue[bytes] = asyncio.Queue()

    async def be_engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while read := await engine_reads.get():
            writer.write(read)
        writer.close()

    engine = await asyncio.start_server(be_engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
    ours, theirs = socket.socketpair()
    async with make_session(LIMIT_S) as session:

        async def serve(request: ClientRequest) -> ClientReply:
            try:
                return await _serve(session, url, request, use_fast_path=use_fast_path)
            except Exception as error:
                broke.append(str(error)[:80])
                raise ConnectionError from error

        server = ClientServer(serve, request_factory=partial(ClientRequest, is_stopping=bool))
        await asyncio.get_running_loop().connect_accepted_socket(server, theirs)
        client, asking = await asyncio.open_connection(sock=ours)
        try:
            asking.write(_QUESTION)
            engine_reads.put_nowait(_HEAD)
            await client.readuntil(b"\r\n\r\n")
            for read, payload in _READS:
                engine_reads.put_nowait(read)
                if await _payload(client, len(payload)) != payload:
                    return False
            engine_reads.put_nowait(_END)
            return await client.readexactly(len(_END)) == _END
        finally:
            engine_reads.put_nowait(b"")
            asking.close()
            engine.close()
            await server.shutdown(0.0)


async def _payload(client: asyncio.StreamReader, size_bytes: int) -> bytes:
    """Return the next bytes of a chunked body, without the chunk framing."""
    payload = b""
    while len(payload) < size_bytes:
        size_line = await client.readuntil(b"\r\n")
        piece = await client.readexactly(int(size_line, 16) + 2)
        payload += piece.removesuffix(b"\r\n")
    return payload


async def _serve(
    session: aiohttp.ClientSession, url: str, request: ClientRequest, *, use_fast_path: bool
) -> ClientReply:
    """Relay one stream as `Relay` does, without an observer."""
    reply = await send(session, url, "GET", "/", CIMultiDict(), None)
    response = ClientReply(reply.status, CIMultiDict())
    with reply:
        await response.prepare(request)
        transport = request.transport
        if transport is None:
            return response
        exchange = Exchange(
            request_id="", method="GET", path="/", started_unix_s=0.0, accepted_at_s=0.0
        )
        await pass_chunks(
            request,
            reply,
            response,
            exchange,
            None,
            BacklogWatch(lambda: 0),
            BacklogRoom(transport, MemoryBudget(0), exchange),
            use_fast_path=use_fast_path,
        )
        await response.write_eof()
    return response
