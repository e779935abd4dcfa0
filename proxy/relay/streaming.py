"""Passes the chunks of a stream to the client: on the fast path where it can, else one by one."""

import asyncio
import time

import aiohttp

from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.fast_path import FastPath
from slowtok.proxy.relay.rewritten import RewrittenStream
from slowtok.proxy.upstream.reply import EngineReply

UPSTREAM_BROKE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


async def pass_chunks(
    request: ClientRequest,
    reply: EngineReply,
    response: ClientReply,
    exchange: Exchange,
    rewritten: RewrittenStream | None,
    backlog: BacklogWatch,
    room: BacklogRoom,
    *,
    use_fast_path: bool,
) -> float | None:
    """Pass each chunk on, then look at it. Returns when the last one was here; None: it broke."""
    fast_path = None
    if use_fast_path:
        fast_path = _fast_path(request, reply, response, exchange, rewritten, backlog, room)
    while True:
        if fast_path is not None:
            await fast_path.flow()
        await room.wait()
        try:
            chunk = await reply.content.readany()
        except UPSTREAM_BROKE:
            return None
        at_s = time.monotonic()
        if not chunk:
            backlog.note()
            return at_s
        if rewritten is None:
            await response.write(chunk)
            exchange.observe(chunk, at_s)
        else:
            await rewritten.write(chunk, at_s)
        backlog.note()


def _fast_path(
    request: ClientRequest,
    reply: EngineReply,
    response: ClientReply,
    exchange: Exchange,
    rewritten: RewrittenStream | None,
    backlog: BacklogWatch,
    room: BacklogRoom,
) -> FastPath | None:
    """Return the fast path; None if the client has gone, or `annotate` will insert a record."""
    client = request.transport
    if client is None or (rewritten is not None and rewritten.annotates):
        return None
    return FastPath(
        reply,
        client,
        request.protocol,
        chunked=response.is_chunked,
        rewrite=None if rewritten is None else rewritten.feed,
        exchange=exchange,
        backlog=backlog,
        room=room,
    )
