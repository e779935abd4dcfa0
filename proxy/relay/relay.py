"""The relay, the hot path: forwards one request from its first byte to its last.

Strategy: forward the client's request unchanged, write each piece of the reply to the client as
soon as it arrives, and only then inspect it. The client's write buffer is deep, so that a slow
client does not delay reading the engine's reply, which would falsify its times.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import aiohttp
import orjson
from multidict import CIMultiDict

from slowtok.proxy.engines.routing import model_named
from slowtok.proxy.http import headers
from slowtok.proxy.http.api_key import client_keys
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply, error_response
from slowtok.proxy.http.run_clues import clues_of
from slowtok.proxy.relay.assembled import as_document, assemble
from slowtok.proxy.relay.backpressure import BacklogRoom, BacklogWatch, backlog_of, delivered
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.relay.interfaces import EngineDirectory, EngineRef, RequestObserver, SafeObserver
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.relay.request_body import read_request
from slowtok.proxy.relay.streaming import (
    UPSTREAM_BROKE,
    RewrittenStream,
    break_off,
    pass_chunks,
)
from slowtok.proxy.stream.annotate import Annotator, mode_of
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.assemble import ask_for_stream
from slowtok.proxy.stream.call import Call, max_tokens_of
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.usage import UsageRemover, ask_for_usage
from slowtok.proxy.upstream.client import UpstreamError, broke_off, no_engine, send
from slowtok.proxy.upstream.reply import EngineReply
from slowtok.proxy.upstream.request import Body


class Relay:
    """Relays requests to the engines and reports each step to the observer."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engines: EngineDirectory,
        observer: RequestObserver,
        *,
        client_timeout_s: float,
        memory_budget: MemoryBudget,
        max_body_bytes: int,
        max_reply_bytes: int,
        annotate: str,
        split_nonstreamed: str,
        records_traces: bool = False,
        use_fast_path: bool = True,
    ) -> None:
        self.memory_budget = memory_budget
        self._session = session
        self._engines = engines
        self._observer = SafeObserver(observer)
        self._client_timeout_s = client_timeout_s
        self._max_body_bytes = max_body_bytes
        self._max_reply_bytes = max_reply_bytes
        self._annotate = annotate
        self._split_nonstreamed = split_nonstreamed
        self._records_traces = records_traces
        self._use_fast_path = use_fast_path
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_cut_off = False

    async def handle(self, request: ClientRequest) -> ClientReply:
        """Relay one request. Cancelled when the client disconnects."""
        now_s = time.time()
        exchange = Exchange(
            request_id=headers.make_request_id(now_s),
            method=request.method,
            path=request.path,
            started_unix_s=now_s,
            accepted_at_s=time.monotonic(),
            api=find_api(request.method, request.path),
            annotate=mode_of(request.headers.get("slowtok-annotate"), self._annotate),
        )
        task = cast("asyncio.Task[object]", asyncio.current_task())
        self._tasks.add(task)
        self._observer.begin(exchange)
        try:
            return await self._relay(request, exchange)
        except UpstreamError as error:
            return self._refuse(request, exchange, error)
        except (asyncio.CancelledError, ConnectionError):  # the client's connection: see _stream
            ended = "proxy-stopped" if self._is_cut_off else "client-gone"
            exchange.end(ended, time.monotonic())
            raise
        finally:
            self._tasks.discard(task)
            if exchange.held_bytes:  # a whole reply is written when this has returned
                task.add_done_callback(partial(self.memory_budget.release_when_written, exchange))
            self._observer.end(exchange)

    @property
    def in_flight(self) -> int:
        """How many requests are in flight."""
        return len(self._tasks)

    def cut_off(self) -> int:
        """Cancel every request in flight because the proxy stops; return how many there were."""
        self._is_cut_off = True
        for task in self._tasks:
            task.cancel()
        return len(self._tasks)

    async def _relay(self, request: ClientRequest, exchange: Exchange) -> ClientReply:
        reply = await self._ask(request, exchange)
        if isinstance(reply, ClientReply):
            return reply
        self.memory_budget.release(exchange)
        exchange.headers_at_s = time.monotonic()
        with reply:
            return await self._pass_on(request, reply, exchange)

    async def _ask(self, request: ClientRequest, exchange: Exchange) -> EngineReply | ClientReply:
        """Send the request to its engine and return the reply once its head has arrived.

        A merged model list of several engines is returned as slowtok's own reply instead.

        The parsed request is not kept beyond this call, which saves memory: a stream may last for
        hours.
        """
        outgoing = headers.to_upstream(
            request.fields,
            request_id=exchange.request_id,
            traceparent=headers.make_traceparent(recorded=self._records_traces),
            own=request.own_fields,
        )
        exchange.caller_id = outgoing["X-Request-Id"]
        exchange.traceparent = outgoing["traceparent"]
        exchange.began_trace = "traceparent" not in request.headers
        original_body, call = await read_request(
            request,
            exchange,
            self.memory_budget,
            self._client_timeout_s,
            self._max_body_bytes,
            for_model=self._engines.several,
        )
        self._note_clues(request, exchange, call)
        keys = client_keys(outgoing)
        if exchange.api is None:
            merged = await self._engines.merged_list(request.method, request.path, keys)
            if merged is not None:
                return self._answer_merged_list(request, exchange, merged)
        read_body = original_body if self._engines.several else None
        model = call.model if call else model_named(request.path, request.query, read_body)
        engine = await self._engines.choose(model, request.path, keys)
        chosen_at_s = time.monotonic()  # what an engine took to say what it is is not ours
        if engine is None:
            raise no_engine(self._engines.searched_at)
        body = original_body
        if call is not None:
            body = self._prepare(call, engine, exchange, outgoing, original_body)
        exchange.engine_name = engine.name
        exchange.was_unloaded = engine.sleeping
        exchange.sent_at_s = time.monotonic()
        exchange.proxy_s = exchange.sent_at_s - chosen_at_s
        self._observer.sent(exchange)
        if call is not None and not call.api.prefill_only:
            self._observer.note_prompt(
                exchange, call.payload, len(body) if isinstance(body, bytes) else 0
            )
        del call  # what was read of a body may be many times as large as the body
        ask = partial(send, self._session, engine.url, request.method, request.target, outgoing)
        try:
            reply = await ask(body)
            if exchange.assembling and reply.status == 400:  # it may be the stream that it refuses
                reply.close()
                exchange.assembling = False
                exchange.sent_at_s = time.monotonic()
                reply = await ask(original_body)
        except UpstreamError as error:
            if error.ended == "upstream-refused":
                self._engines.lose(engine.name)
            raise
        return reply

    def _note_clues(self, request: ClientRequest, exchange: Exchange, call: Call | None) -> None:
        """Record the run clues of a generation; if that fails, the request has none."""
        if exchange.api is None:
            return
        try:
            payload = call.payload if call else None
            exchange.clues = clues_of(request.headers.items(), request.run_name, payload)
        except Exception:  # noqa: BLE001 - see above
            exchange.observer_errors += 1

    def _prepare(
        self,
        call: Call,
        engine: EngineRef,
        exchange: Exchange,
        outgoing: headers.Headers,
        body: Body,
    ) -> Body:
        """Record what the call asks for; return the body, which may also ask for usage.

        Usage is requested if the stream would not report its token counts otherwise.
        """
        exchange.model = call.model
        exchange.stream = call.stream
        exchange.max_tokens = max_tokens_of(call)
        if exchange.annotate and call.stream:
            outgoing.popall("Accept-Encoding", None)  # the end has to be found
        if not isinstance(body, bytes):
            return body
        if not call.stream:
            return self._ask_for_stream(call, exchange, outgoing, body)
        if not call.api.takes_stream_options or engine.kind == "llama-server":
            return body  # llama-server's timings carry every count, and asking would move them
        changed_body = ask_for_usage(body, call.payload)
        if changed_body is None:
            return body
        exchange.asked_for_usage = True
        outgoing.popall("Accept-Encoding", None)  # the chunk has to be found again
        return changed_body

    def _ask_for_stream(
        self, call: Call, exchange: Exchange, outgoing: headers.Headers, body: bytes
    ) -> bytes:
        """Return a body that asks for a stream instead of a whole reply, if the setting says so."""
        if self._split_nonstreamed != "stream" or call.api.make_parts is None:
            return body
        stream_body = ask_for_stream(call.payload, stream_options=call.api.takes_stream_options)
        if stream_body is None:
            return body
        exchange.assembling = True
        outgoing.popall("Accept-Encoding", None)  # it has to be read
        return stream_body

    async def _pass_on(
        self, request: ClientRequest, reply: EngineReply, exchange: Exchange
    ) -> ClientReply:
        exchange.status = reply.status
        client_headers = headers.to_client(reply.headers, origin=request.headers.get("Origin"))
        client_headers["slowtok-id"] = exchange.request_id
        client_headers.setdefault("X-Request-Id", exchange.caller_id or exchange.request_id)
        if exchange.api is None:
            return await self._relay_stream(request, reply, exchange, client_headers)
        content_type = _content_type(reply)
        asked_to_stream = exchange.stream
        exchange.stream = content_type.startswith(("text/event-stream", "application/x-ndjson"))
        if not exchange.stream and asked_to_stream and not _is_document(reply):
            return await self._relay_stream(request, reply, exchange, client_headers)
        if "Content-Encoding" not in reply.headers:
            exchange.meter = Meter(exchange.api, content_type)
        if not exchange.stream:
            return await self._relay_non_streamed(request, reply, exchange, client_headers)
        if exchange.assembling:
            return await self._relay_assembled(reply, exchange, client_headers)
        client_headers.setdefault(
            "X-Accel-Buffering", "no"
        )  # nginx before us would hold tokens back
        client_headers.extend(await self._observer.stream_headers(exchange))
        return await self._relay_stream(request, reply, exchange, client_headers)

    def _make_rewritten_stream(
        self, reply: EngineReply, response: ClientReply, exchange: Exchange
    ) -> RewrittenStream | None:
        """Return the rewriter of a stream that is not passed on unchanged, else None."""
        if exchange.meter is None:
            return None
        ndjson = _content_type(reply).startswith("application/x-ndjson")
        can_annotate = exchange.annotate == "chunk" or not ndjson  # JSON lines have no comments
        annotator = None
        if exchange.annotate and can_annotate:
            annotator = Annotator(exchange.annotate, ndjson=ndjson)
        remover = UsageRemover() if exchange.asked_for_usage else None
        if annotator is None and remover is None:
            return None
        response.headers.popall("Content-Length", None)  # it counts other bytes
        return RewrittenStream(
            response,
            exchange,
            self._observer.record_so_far,
            remover=remover,
            annotator=annotator,
        )

    async def _relay_stream(
        self,
        request: ClientRequest,
        reply: EngineReply,
        exchange: Exchange,
        client_headers: headers.Headers,
        *,
        first: deque[bytes] | None = None,
    ) -> ClientReply:
        """Forward the reply piece by piece: the pieces in `first`, then what still arrives."""
        reason = headers.without_controls(reply.reason or "")
        response = ClientReply(reply.status, client_headers, reason=reason)
        rewritten = self._make_rewritten_stream(reply, response, exchange)
        await response.prepare(request)
        request.forget_head()
        reply.forget_head()
        if not first:  # what a whole reply held back until it was too large is the engine's time
            exchange.proxy_s += time.monotonic() - (exchange.headers_at_s or 0.0)
        transport = request.transport
        if transport is None:
            raise asyncio.CancelledError
        room = BacklogRoom(transport, self.memory_budget, exchange)
        backlog = BacklogWatch(backlog_of(transport), room.release)
        try:
            while first:
                await response.write(first.popleft())
            self.memory_budget.release(exchange)
            ended_at_s = await pass_chunks(
                request,
                reply,
                response,
                exchange,
                rewritten,
                backlog,
                room,
                use_fast_path=self._use_fast_path,
            )
            if ended_at_s is None:
                exchange.end("upstream-error", time.monotonic())
                await delivered(backlog.backlog_bytes)
                await break_off(request, rewritten)
                return response
            exchange.last_byte_at_s = ended_at_s
            self._observer.arrived(exchange)
            if rewritten is not None:
                await rewritten.close()
            await response.write_eof(headers.trailer_to_client(reply.body.trailer))
            await delivered(backlog.backlog_bytes)
        except ConnectionError:  # the client's side; the engine's is caught above
            exchange.end("client-gone", time.monotonic())
            return response
        except asyncio.CancelledError:
            if self._is_cut_off:
                await break_off(request, rewritten)
            raise
        finally:
            backlog.close()
            room.release()
            exchange.client_blocked_s = backlog.blocked_s
        exchange.delivered_at_s = time.monotonic()
        exchange.end(None, exchange.delivered_at_s)
        return response

    async def _relay_non_streamed(
        self,
        request: ClientRequest,
        reply: EngineReply,
        exchange: Exchange,
        client_headers: headers.Headers,
    ) -> ClientReply:
        """Collect the whole reply, so that its head can carry its own diagnosis.

        A reply that exceeds its limit or the memory budget is forwarded as it arrives, undiagnosed.
        """
        pieces: deque[bytes] = deque()
        size_bytes, is_held = 0, True
        try:
            while is_held and not reply.content.at_eof():
                chunk = await reply.content.readany()
                pieces.append(chunk)
                size_bytes += len(chunk)
                has_room = self.memory_budget.reserve(exchange, len(chunk))
                is_held = has_room and size_bytes <= self._max_reply_bytes
        except UPSTREAM_BROKE:
            raise broke_off(reply) from None
        if not is_held or reply.body.trailer:
            exchange.meter = None
            return await self._relay_stream(request, reply, exchange, client_headers, first=pieces)
        body = b"".join(pieces)
        pieces.clear()
        exchange.last_byte_at_s = time.monotonic()
        self._observer.arrived(exchange)
        exchange.observe(body, exchange.last_byte_at_s)
        return await self._answer_with_diagnosis(reply, exchange, client_headers, body)

    async def _relay_assembled(
        self, reply: EngineReply, exchange: Exchange, client_headers: headers.Headers
    ) -> ClientReply:
        """Assemble a whole reply from the stream that was requested in its place."""
        try:
            body = await assemble(reply, exchange, self.memory_budget)
        except UPSTREAM_BROKE:
            raise broke_off(reply) from None
        self._observer.arrived(exchange)
        as_document(client_headers)
        return await self._answer_with_diagnosis(reply, exchange, client_headers, body)

    async def _answer_with_diagnosis(
        self,
        reply: EngineReply,
        exchange: Exchange,
        client_headers: headers.Headers,
        body: bytes,
    ) -> ClientReply:
        """Diagnose a complete reply and return it with its diagnosis in the headers."""
        arrived_at_s = exchange.last_byte_at_s or time.monotonic()
        exchange.end(None, arrived_at_s)  # now it is known whether the reply tells its times
        client_headers.extend(await self._observer.diagnosis_headers(exchange))
        status = exchange.status or reply.status
        reason = headers.without_controls(reply.reason or "") if status == reply.status else None
        response = ClientReply(status, client_headers, body, reason=reason)
        exchange.proxy_s += time.monotonic() - arrived_at_s
        return response

    def _answer_merged_list(
        self, request: ClientRequest, exchange: Exchange, merged: Mapping[str, Any]
    ) -> ClientReply:
        """Return slowtok's own reply with the merged model list of several engines."""
        exchange.status = 200
        exchange.last_byte_at_s = time.monotonic()
        exchange.end(None, exchange.last_byte_at_s)
        fields = CIMultiDict({"Content-Type": "application/json"})
        return _with_id_fields(request, exchange, ClientReply(200, fields, orjson.dumps(merged)))

    def _refuse(
        self, request: ClientRequest, exchange: Exchange, error: UpstreamError
    ) -> ClientReply:
        exchange.status = error.status
        exchange.end(error.ended, time.monotonic())
        reply = error_response(error.status, f"{error.failed}: {error.check}", error.ended)
        return _with_id_fields(request, exchange, reply)


def _with_id_fields(request: ClientRequest, exchange: Exchange, reply: ClientReply) -> ClientReply:
    """Add the request ids, and CORS fields if needed, to a reply that slowtok itself made."""
    reply.headers["slowtok-id"] = exchange.request_id
    reply.headers["X-Request-Id"] = exchange.caller_id or exchange.request_id
    if origin := request.headers.get("Origin"):
        headers.allow_page(reply.headers, origin)
    return reply


def _content_type(reply: EngineReply) -> str:
    return reply.headers.get("Content-Type", "").lower()


def _is_document(reply: EngineReply) -> bool:
    """Return True if the reply to a streamed request is a single JSON document or an error."""
    return _content_type(reply).startswith("application/json") or reply.status >= 400
