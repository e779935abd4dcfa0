"""One request, from its first byte to its last: the hot path.

Strategy: send the client's request on as it is, write each piece of the reply to the client the
moment it comes, and only then look at it. The connection to the client is given a deep buffer, so
that a slow client does not slow the reading, and with it the clock, of the engine's reply.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import cast

import aiohttp
from aiohttp import web

from slowtok.proxy import headers, ids
from slowtok.proxy.assembled import as_document, assemble
from slowtok.proxy.backlog import POLL_S, Backlog, BacklogWatch, backlog_of
from slowtok.proxy.engines import Engine, Engines
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.observer import Observer
from slowtok.proxy.outputs.errors import error_response
from slowtok.proxy.stream.annotate import Annotator, Mode
from slowtok.proxy.stream.apis import Api, find_api
from slowtok.proxy.stream.assemble import ask_for_stream
from slowtok.proxy.stream.call import Call, read_call
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.reshape import Reshaping
from slowtok.proxy.stream.usage import UsageRemover, ask_for_usage
from slowtok.proxy.upstream import Body, UpstreamError, held, send

MAX_READ_BODY_BYTES = 64 * 1024 * 1024  # a larger request passes unread, without a verdict
MAX_WHOLE_REPLY_BYTES = 32 * 1024 * 1024  # a larger reply passes as it comes, without a verdict
CLIENT_BACKLOG_BYTES = 4 * 1024 * 1024  # about 15,000 tokens; then the engine is slowed, too

PASSED = web.ResponseKey("passed", headers.Headers)  # the engine's fields in a relayed reply

_UPSTREAM_BROKE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Relay:
    """Relays requests to the engines and shows each finished one to the observer."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engines: Engines,
        observer: Observer,
        *,
        client_timeout_s: float,
    ) -> None:
        self._session = session
        self._engines = engines
        self._observer = observer
        self._client_timeout_s = client_timeout_s
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_cut_off = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Relay one request. Cancelled when the client goes away."""
        now_s = time.time()
        exchange = Exchange(
            request_id=ids.make_request_id(now_s),
            method=request.method,
            path=request.path,
            started_unix_s=now_s,
            accepted_at_s=time.monotonic(),
            api=find_api(request.method, request.path),
            annotate=_mode(request.headers.get("slowtok-annotate"), self._annotate),
        )
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._tasks.add(task)
        with self._unharmed("begin"):
            self._observer.begin(exchange)
        try:
            return await self._relay(request, exchange)
        except asyncio.CancelledError:
            exchange.end(self._cut_short(), time.monotonic())
            raise
        finally:
            self._tasks.discard(task)
            with self._unharmed("end"):
                self._observer.end(exchange)

    def cut_off(self) -> int:
        """End every request that is on its way: the proxy stops. Returns how many there were."""
        self._is_cut_off = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)

    async def _leave(
        self, response: web.StreamResponse, request: web.Request, reshaping: Reshaping | None
    ) -> None:
        if self._is_cut_off:
            await _break_off(response, request, reshaping)

    def _cut_short(self) -> str:
        """Say why a request was cancelled."""
        return "proxy-stopped" if self._is_cut_off else "client-gone"

    @contextlib.contextmanager
    def _unharmed(self, place: str) -> Iterator[None]:
        """Let whatever breaks in observing cost the request nothing; it is counted."""
        try:
            yield
        except Exception:  # noqa: BLE001 - see above
            self._observer.failures[place] += 1

    async def _relay(self, request: web.Request, exchange: Exchange) -> web.StreamResponse:
        body, call = await _read_request(request, exchange.api, self._client_timeout_s)
        read_at_s = time.monotonic()
        engine = await self._engines.choose(call.model if call else None)
        if engine is None:
            return self._refuse(exchange, _no_engine(self._engines.looked_at))
        outgoing = headers.to_upstream(
            request.headers,
            request_id=exchange.request_id,
            traceparent=ids.make_traceparent(),
        )
        exchange.caller_id = outgoing["X-Request-Id"]
        asked = body
        if call is not None:
            body = self._prepare(call, engine, exchange, outgoing, body)
        exchange.engine_name = engine.name
        exchange.slept = engine.probe.sleeping
        exchange.sent_at_s = time.monotonic()
        exchange.proxy_s = exchange.sent_at_s - read_at_s
        with self._unharmed("sent"):
            self._observer.sent(exchange)
        if call is not None:
            with self._unharmed("prompt print"):
                self._observer.note_prompt(
                    exchange, call.said, len(body) if isinstance(body, bytes) else 0
                )
        target = _target(request)
        try:
            reply = await send(self._session, engine.url, request.method, target, outgoing, body)
            if exchange.assembling and reply.status == 400:  # it may be the stream that it refuses
                reply.close()
                exchange.assembling = False
                reply = await send(
                    self._session, engine.url, request.method, target, outgoing, asked
                )
        except UpstreamError as error:
            if error.ended == "upstream-refused":
                self._engines.lose(engine)
            return self._refuse(exchange, error)
        del asked, body, call  # a stream may last for hours: the prompt must not be kept that long
        exchange.headers_at_s = time.monotonic()
        with held(reply):
            return await self._pass_on(request, reply, exchange)

    def _prepare(
        self, call: Call, engine: Engine, exchange: Exchange, outgoing: headers.Headers, body: Body
    ) -> Body:
        """Note what the call asks for, and ask for usage where its stream would tell none."""
        exchange.model = call.model
        exchange.stream = call.stream
        if exchange.annotate and call.stream:
            outgoing.popall("Accept-Encoding", None)  # the end has to be found
        if not (call.api.takes_stream_options and isinstance(body, bytes)):
            return body
        if not call.stream:
            return self._ask_for_stream(call, exchange, outgoing, body)
        if engine.kind == "llama-server":
            return body  # its timings carry every count, and asking would move them
        asked = ask_for_usage(body, call.said)
        if asked is None:
            return body
        exchange.asked_for_usage = True
        outgoing.popall("Accept-Encoding", None)  # the chunk has to be found again
        return asked

    def _ask_for_stream(
        self, call: Call, exchange: Exchange, outgoing: headers.Headers, body: bytes
    ) -> bytes:
        """Ask for a stream in place of a whole reply, where the setting says so."""
        asked = ask_for_stream(body, call.said) if self._split_nonstreamed == "stream" else None
        if asked is None:
            return body
        exchange.assembling = True
        outgoing.popall("Accept-Encoding", None)  # it has to be read
        return asked

    async def _pass_on(
        self, request: web.Request, reply: aiohttp.ClientResponse, exchange: Exchange
    ) -> web.StreamResponse:
        exchange.status = reply.status
        passed = headers.to_client(reply.headers, origin=request.headers.get("Origin"))
        passed["slowtok-id"] = exchange.request_id
        passed.setdefault("X-Request-Id", exchange.caller_id or exchange.request_id)
        if exchange.api is None:
            return await self._stream(request, reply, exchange, passed)
        content_type = reply.headers.get("Content-Type", "").lower()
        asked_to_stream = exchange.stream
        exchange.stream = content_type.startswith(("text/event-stream", "application/x-ndjson"))
        if not exchange.stream and asked_to_stream and not _is_document(reply, content_type):
            return await self._stream(request, reply, exchange, passed)
        if "Content-Encoding" not in reply.headers:
            exchange.meter = Meter(exchange.api, content_type)
        if not exchange.stream:
            return await self._whole(request, reply, exchange, passed)
        if exchange.assembling:
            return await self._assembled(reply, exchange, passed)
        with self._unharmed("stream headers"):
            passed.extend(self._observer.stream_headers(exchange))
        reshaping = _reshaping(exchange, content_type)
        if reshaping is not None:
            passed.popall("Content-Length", None)  # it counts other bytes
        return await self._stream(request, reply, exchange, passed, reshaping=reshaping)

    async def _stream(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        exchange: Exchange,
        passed: headers.Headers,
        *,
        first: bytes = b"",
        reshaping: Reshaping | None = None,
    ) -> web.StreamResponse:
        """Pass the reply on piece by piece, `first` before what is still to come."""
        response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=passed)
        response[PASSED] = passed
        await response.prepare(request)
        exchange.proxy_s += time.monotonic() - (exchange.headers_at_s or 0.0)
        transport = request.transport
        if transport is None:
            raise asyncio.CancelledError
        transport.set_write_buffer_limits(high=CLIENT_BACKLOG_BYTES)
        backlog = BacklogWatch(backlog_of(transport))
        content = reply.content
        try:
            if first:
                await response.write(first)
            while True:
                try:
                    chunk = await content.readany()
                except _UPSTREAM_BROKE:
                    exchange.end("upstream-error", time.monotonic())
                    await _break_off(response, request, reshaping)
                    return response
                at_s = time.monotonic()
                if not chunk:
                    break
                passing = chunk if reshaping is None else reshaping.feed(chunk)
                if passing:
                    await response.write(passing)
                exchange.observe(chunk, at_s)
                if reshaping is not None and reshaping.ending:
                    exchange.last_byte_at_s = at_s
                    await response.write(reshaping.close(self._observer.record_so_far(exchange)))
                backlog.note()
            exchange.last_byte_at_s = at_s
            with self._unharmed("arrived"):
                self._observer.arrived(exchange)
            if reshaping is not None:
                record = self._observer.record_so_far(exchange) if reshaping.annotates else None
                if rest := reshaping.close(record):
                    await response.write(rest)
            await response.write_eof()
            await _delivered(backlog.waiting)
        except ConnectionError:  # the client's side; the engine's is caught above
            exchange.end("client-gone", time.monotonic())
            return response
        except asyncio.CancelledError:
            await self._leave(response, request, reshaping)
            raise
        finally:
            backlog.close()
            exchange.client_blocked_s = backlog.blocked_s
        exchange.delivered_at_s = time.monotonic()
        exchange.end(None, exchange.delivered_at_s)
        return response

    async def _whole(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        exchange: Exchange,
        passed: headers.Headers,
    ) -> web.StreamResponse:
        """Wait for the whole reply, so that its head can carry its own diagnosis."""
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            while chunk := await reply.content.readany():
                pieces.append(chunk)
                size_bytes += len(chunk)
                if size_bytes > MAX_WHOLE_REPLY_BYTES:
                    exchange.meter = None
                    first = b"".join(pieces)
                    return await self._stream(request, reply, exchange, passed, first=first)
        except _UPSTREAM_BROKE:
            return self._refuse(exchange, _broke_off(reply))
        body = b"".join(pieces)
        exchange.last_byte_at_s = time.monotonic()
        with self._unharmed("arrived"):
            self._observer.arrived(exchange)
        exchange.observe(body, exchange.last_byte_at_s)
        return await self._answer(reply, exchange, passed, body)

    async def _assembled(
        self, reply: aiohttp.ClientResponse, exchange: Exchange, passed: headers.Headers
    ) -> web.StreamResponse:
        """Put the whole reply together from the stream that was asked for in its place."""
        try:
            body = await assemble(reply, exchange)
        except UpstreamError as error:
            return self._refuse(exchange, error)
        except _UPSTREAM_BROKE:
            return self._refuse(exchange, _broke_off(reply))
        with self._unharmed("arrived"):
            self._observer.arrived(exchange)
        as_document(passed)
        return await self._answer(reply, exchange, passed, body)

    async def _answer(
        self,
        reply: aiohttp.ClientResponse,
        exchange: Exchange,
        passed: headers.Headers,
        body: bytes,
    ) -> web.StreamResponse:
        """Diagnose a reply that is here as a whole, and send it."""
        arrived_at_s = exchange.last_byte_at_s or time.monotonic()
        with self._unharmed("engine counters"):
            await self._observer.counted(exchange)
        exchange.end(None, arrived_at_s)
        passed.extend(self._observer.diagnosis_headers(exchange))
        status = exchange.status or reply.status
        reason = reply.reason if status == reply.status else None
        response = web.Response(status=status, reason=reason, headers=passed, body=body)
        response[PASSED] = passed
        exchange.proxy_s += time.monotonic() - arrived_at_s
        return response

    def _refuse(self, exchange: Exchange, error: UpstreamError) -> web.StreamResponse:
        exchange.status = error.status
        exchange.end(error.ended, time.monotonic())
        response = error_response(error.status, f"{error.failed}: {error.check}", error.ended)
        response.headers["slowtok-id"] = exchange.request_id
        response.headers["X-Request-Id"] = exchange.caller_id or exchange.request_id
        return response


async def _read_request(
    request: web.Request, api: Api | None, timeout_s: float
) -> tuple[Body, Call | None]:
    """Return the body to send, and what it asks for where it is a generation that we can read."""
    if not request.body_exists:
        return None, None
    if api is None or "Content-Encoding" in request.headers:
        return _pieces(request, [], timeout_s), None
    pieces: list[bytes] = []
    size_bytes = 0
    while chunk := await _next_piece(request, timeout_s):
        pieces.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > MAX_READ_BODY_BYTES:
            return _pieces(request, pieces, timeout_s), None
    body = b"".join(pieces)
    return body, read_call(api, body)


async def _pieces(
    request: web.Request, read: list[bytes], timeout_s: float
) -> AsyncIterator[bytes]:
    for piece in read:
        yield piece
    while piece := await _next_piece(request, timeout_s):
        yield piece


async def _next_piece(request: web.Request, timeout_s: float) -> bytes:
    """Return the next bytes of the body; a client that was stopped meanwhile is hung up on."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await request.content.readany()
    if request.transport is not None:
        request.transport.abort()
    return await asyncio.Future()  # it is cancelled with its request


def _target(request: web.Request) -> str:
    """Return path and query exactly as the client sent them; `*` asks of the whole server."""
    target = request.raw_path
    if target.startswith("/"):
        return target
    return "/" if target == "*" else request.rel_url.raw_path_qs


def _mode(asked: str | None, setting: str) -> Mode | None:
    """Return how a stream is to carry its record: the request's word goes before the setting."""
    mode = asked if asked in ("comment", "chunk", "off") else setting
    return "comment" if mode == "comment" else "chunk" if mode == "chunk" else None


def _reshaping(exchange: Exchange, content_type: str) -> Reshaping | None:
    """Return what changes a stream on its way; None for one that passes as it is."""
    if exchange.meter is None:
        return None
    ndjson = content_type.startswith("application/x-ndjson")
    mode = exchange.annotate
    can = mode == "chunk" or (mode == "comment" and not ndjson)  # JSON lines have no comments
    annotator = Annotator(mode, ndjson=ndjson) if mode and can else None
    remover = UsageRemover() if exchange.asked_for_usage else None
    return Reshaping(remover, annotator) if annotator or remover else None


def _is_document(reply: aiohttp.ClientResponse, content_type: str) -> bool:
    """Say whether a reply to a streamed request is one JSON document after all, or an error."""
    return content_type.startswith("application/json") or reply.status >= 400


async def _break_off(
    response: web.StreamResponse, request: web.Request, reshaping: Reshaping | None
) -> None:
    """End the client's stream visibly broken, after the last bytes that the engine sent."""
    transport = request.transport
    if reshaping is not None and (rest := reshaping.close(None)):
        await response.write(rest)
    if transport is None:
        return
    if request.version < aiohttp.HttpVersion11 and (sock := transport.get_extra_info("socket")):
        # Without chunks or a length a plain close would look like a clean end: reset instead.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.close()


async def _delivered(waiting: Backlog) -> None:
    """Wait until the client has taken everything; returns at once for one that keeps up."""
    while waiting():  # noqa: ASYNC110 - the kernel has no event for it
        await asyncio.sleep(POLL_S)


def _no_engine(looked_at: str) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-refused",
        failed=f"no inference server found ({looked_at})",
        check="start llama-server, vLLM or Ollama, or name one with --upstream URL",
    )


def _broke_off(reply: aiohttp.ClientResponse) -> UpstreamError:
    return UpstreamError(
        status=502,
        ended="upstream-error",
        failed=f"{reply.url.origin()} broke off in the middle of its reply",
        check="did the engine crash? its own log says more",
    )
