"""Builds a non-streamed reply from the stream that slowtok requested in its place."""

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


async def assemble(reply: EngineReply, exchange: Exchange, memory_budget: MemoryBudget) -> bytes:
    """Read the stream to its end and return the complete reply.

    An error event in the stream sets the status, and the error is the reply.

    Raises:
        UpstreamError: the stream broke off, cannot be assembled, or exceeds the memory budget.
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
            if not memory_budget.reserve(exchange, len(chunk)):
                raise memory_budget.release_and_refuse(exchange, "the reply to this request")
        exchange.last_byte_at_s = time.monotonic()
        body = assembler.reply()
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _cannot("cannot be put together") from error
    if assembler.error is not None:
        exchange.status = _status_of(assembler.error["error"])
        return orjson.dumps(assembler.error)
    if body is None:
        raise _cannot("ended before its answer did")
    return body


def as_document(client_headers: Headers) -> None:
    """Turn the header fields of a stream into those of a JSON document."""
    for name in _OF_STREAMS:
        client_headers.popall(name, None)
    client_headers["Content-Type"] = "application/json"


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
