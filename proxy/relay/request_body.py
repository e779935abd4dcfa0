"""Reads a client's request body: completely if it has to be parsed, piece by piece otherwise."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from slowtok.proxy.http.aiohttp_private import has_next
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.stream.call import Call, is_quickly_read, read_call
from slowtok.proxy.upstream.client import UpstreamError
from slowtok.proxy.upstream.request import Body

LOOK_S = 0.5  # how often a stalled body is checked


async def read_request(
    request: ClientRequest,
    exchange: Exchange,
    memory_budget: MemoryBudget,
    timeout_s: float,
    max_bytes: int,
    *,
    for_model: bool,
) -> tuple[Body, Call | None]:
    """Return the body to send, and the `Call` in it if it is a generation that slowtok can read.

    A body is streamed through unread if it is larger than `max_bytes`, if `memory_budget` has no
    room for it, or if parsing it would take long. With `for_model` (several engines), other JSON
    is read as well, however long that takes, because its `model` decides which engine it goes to.

    Raises:
        UpstreamError: the body has to be read to choose its engine, but is too large or finds no
            room in the memory budget.
    """
    if not request.body_exists:
        return None, None
    api = exchange.api
    must_be_read = api is not None or (for_model and request.content_type == "application/json")
    if not must_be_read or "Content-Encoding" in request.headers:
        if request.content.is_eof():  # one that is here can be sent again
            return await request.content.readany(), None
        return _rest(request, timeout_s), None
    pieces: deque[bytes] = deque()
    size_bytes = 0
    while not request.content.at_eof():
        chunk = await _next_piece(request, timeout_s)
        size_bytes += len(chunk)
        too_large = size_bytes > max_bytes
        if too_large and for_model:
            memory_budget.release(exchange)
            raise _too_large(max_bytes)
        has_room = not too_large and memory_budget.reserve(exchange, len(chunk))
        if for_model and not has_room:
            raise memory_budget.release_and_refuse(exchange, "this request")
        if not has_room:
            return _with_pieces_read(
                pieces, chunk, _rest(request, timeout_s), exchange, memory_budget
            ), None
        pieces.append(chunk)
    body = b"".join(pieces)
    if api is None or not (for_model or is_quickly_read(body)):
        return body, None
    return body, read_call(api, body)


def _too_large(max_bytes: int) -> UpstreamError:
    return UpstreamError(
        status=413,
        ended="overloaded",
        failed=f"this request is larger than max_body_bytes ({max_bytes / 2**20:,.0f} MiB), and"
        " slowtok has to read it to find its engine among several",
        check="raise max_body_bytes, or ask its engine through a slowtok with one --upstream",
    )


async def _with_pieces_read(
    read: deque[bytes],
    last: bytes,
    rest: AsyncIterator[bytes],
    exchange: Exchange,
    memory_budget: MemoryBudget,
) -> AsyncIterator[bytes]:
    """Yield the pieces read so far, which release their memory, then the rest of the body."""
    while read:
        piece = read.popleft()
        yield piece
        memory_budget.release(exchange, len(piece))
    yield last
    async for piece in rest:
        yield piece


async def _rest(request: ClientRequest, timeout_s: float) -> AsyncIterator[bytes]:
    while piece := await _next_piece(request, timeout_s):
        yield piece


async def _next_piece(request: ClientRequest, timeout_s: float) -> bytes:
    """Return the next bytes of the body; abort the connection of a client that stalls.

    It is also aborted if the body is malformed, because aiohttp does not wake a reader that waits
    for the rest.
    """
    if request.content.is_eof():  # all of it is here, as is nearly always so
        return await request.content.readany()
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + timeout_s
    while (left_s := until_s - now_s()) > 0 and not _is_broken(request):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, LOOK_S)):
                return await request.content.readany()
    if request.transport is not None:
        request.transport.abort()
    return await asyncio.Future()  # it is cancelled with its request


def _is_broken(request: ClientRequest) -> bool:
    """Return True if aiohttp reported a malformed body: a message follows an unfinished one."""
    return has_next(request.protocol) and not request.content.is_eof()
