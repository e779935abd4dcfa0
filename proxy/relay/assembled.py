"""A whole reply put together from the stream that slowtok asked for in its place."""

import time

import orjson

from slowtok.proxy.http.headers import Headers
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.stream.assemble import Assembler
from slowtok.proxy.upstream.client import UpstreamError
from slowtok.proxy.upstream.reply import EngineReply

MAX_STREAM_BYTES = 256 * 1024 * 1024  # a million tokens at 250 bytes each; heuristic
_OF_STREAMS = ("Content-Type", "Content-Length", "Cache-Control", "X-Accel-Buffering")


async def assemble(reply: EngineReply, exchange: Exchange, held: MemoryBudget) -> bytes:
    """Read the stream to its end and return the reply; an error in it sets the status.

    Raises:
        UpstreamError: the stream broke off, cannot be put together, or is more than may be held.
        aiohttp.ClientError, OSError: the connection broke.
    """
    if exchange.api is None or exchange.api.make_parts is None:
        raise _cannot("was not asked for")
    assembler = Assembler(exchange.api.make_parts)
    size_bytes = 0
    try:
        while chunk := await reply.content.readany():
            exchange.observe(chunk, time.monotonic())
            assembler.feed(chunk)
            size_bytes += len(chunk)
            if size_bytes > MAX_STREAM_BYTES:
                raise _cannot("is too long to be put together")
            if not held.take(exchange, len(chunk)):
                raise held.release_and_refuse(exchange, "the reply to this request")
        exchange.last_byte_at_s = time.monotonic()
        whole = assembler.whole()
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _cannot("cannot be put together") from error
    if assembler.error is not None:
        exchange.status = _status_of(assembler.error["error"])
        return orjson.dumps(assembler.error)
    if whole is None:
        raise _cannot("ended before its answer did")
    return whole


def as_document(passed: Headers) -> None:
    """Make a stream's header fields those of a whole reply."""
    for name in _OF_STREAMS:
        passed.popall(name, None)
    passed["Content-Type"] = "application/json"


def _status_of(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _cannot(why: str) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"the engine's stream {why}",
        check="check whether the engine crashed; its own log says more; "
        'split_nonstreamed = "off" asks for whole replies',
    )
