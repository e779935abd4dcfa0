"""The edge towards clients: routes a request to a page of slowtok's own, a refusal or the relay.

A worker has the same edge as a proxy that is one process.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from slowtok.proxy.http.aiohttp_private import Runner, is_no_http
from slowtok.proxy.http.connection import ClientServer
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply, error_response
from slowtok.proxy.relay.interfaces import EngineDirectory, RequestObserver
from slowtok.proxy.relay.memory_budget import MemoryBudget
from slowtok.proxy.relay.relay import Relay
from slowtok.proxy.relay.settings import RelaySettings
from slowtok.proxy.relay.streaming import break_off
from slowtok.proxy.runtime.interpreter import Heap, find_trim
from slowtok.proxy.server.access import AccessPolicy, Relayed, is_unclear

if TYPE_CHECKING:
    from slowtok.proxy.http.aiohttp_private import RawRequestMessage

OWN = "/slowtok"
HEALTHY = b'{"status":"ok"}'
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What answers clients: the proxy's own `pages`, and `relay` for all the rest.

    Once `is_stopping`, each connection ends with the reply that it is at.
    """

    pages: web.Application
    relay: Relayed
    access: AccessPolicy
    is_stopping: Callable[[], bool]


def make_edge(
    access: AccessPolicy,
    relay: Relayed,
    own_pages: Iterable[web.RouteDef],
    *,
    is_stopping: Callable[[], bool],
) -> Edge:
    """Return the edge; who may not pass gets neither a page nor an engine."""

    async def mend_head(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)
        if is_stopping():
            response.force_close()
            response.headers["Connection"] = "close"

    pages = web.Application(middlewares=[access.middleware()])
    pages.on_response_prepare.append(mend_head)
    pages.add_routes([web.get(f"{OWN}/health", _health), *own_pages])
    return Edge(pages=pages, relay=relay, access=access, is_stopping=is_stopping)


async def _health(_request: web.Request) -> web.Response:
    """Say that the proxy itself works: a relaying process answers, however busy the others are."""
    fields = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(
        body=HEALTHY, content_type="application/json", charset="utf-8", headers=fields
    )


def make_relay(
    settings: RelaySettings,
    session: aiohttp.ClientSession,
    engines: EngineDirectory,
    observer: RequestObserver,
    *,
    use_fast_path: bool = True,
) -> Relay:
    """Return the relay as it is set; `use_fast_path` as `self_test.fast_path_works` found."""
    return Relay(
        session,
        engines,
        observer,
        client_timeout_s=settings.client_timeout_s,
        held=MemoryBudget(settings.max_held_bytes, Heap(find_trim()).freed),
        max_body_bytes=settings.max_body_bytes,
        max_reply_bytes=settings.max_reply_bytes,
        annotate=settings.annotate,
        split_nonstreamed=settings.split_nonstreamed,
        records_traces=settings.records_traces,
        use_fast_path=use_fast_path,
    )


def make_runner(edge: Edge, max_head_bytes: int) -> web.AppRunner:
    """Return what serves the edge. aiohttp does the HTTP: it changes no body.

    It cancels a request when its client goes.
    """

    def relaying(pages: web.Server) -> ClientServer:
        make, handle = _relaying_the_rest(pages, edge)
        return ClientServer(
            handle,
            request_factory=make,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=75,
            max_line_size=max_head_bytes,
            max_field_size=max_head_bytes,
        )

    return Runner(
        edge.pages,
        relaying,
        shutdown_timeout=1.0,  # `drain` has waited before
        handle_signals=False,
    )


def _relaying_the_rest(pages: web.Server, edge: Edge) -> tuple[Any, Any]:
    """Return what makes a request of a message, and what answers it."""
    make_page_request, show_page = pages.request_factory, pages.request_handler
    refusal_of, relay, is_stopping = edge.access.refusal_of, edge.relay, edge.is_stopping

    def make(message: "RawRequestMessage", *rest: Any) -> Any:
        if _is_own(message) and not is_unclear(message):
            return make_page_request(message, *rest)
        return ClientRequest(message, *rest, is_stopping=is_stopping)

    async def handle(request: Any) -> Any:
        if not isinstance(request, ClientRequest):
            return await show_page(request)
        try:
            refusal = refusal_of(request)
            if refusal is not None:
                return refusal
            if request.headers.get("Expect"):
                await request.send_continue()
            return await relay(request)
        except Exception as error:  # noqa: BLE001 - aiohttp could not answer such a request
            if not isinstance(error, ConnectionError):  # its client has gone: nobody hears us
                _log.exception("relaying broke")
            if request.writer.output_size:
                await break_off(request, None)
            return _broken()

    return make, handle


def _is_own(message: "RawRequestMessage") -> bool:
    """Return True if aiohttp answers: for one of our own pages, or what it could not read."""
    path = message.url.path_safe  # by which aiohttp finds a page
    return (path.startswith(OWN) and path[len(OWN) :][:1] in ("", "/")) or is_no_http(message)


def _broken() -> ClientReply:
    reply = error_response(
        500, "internal error in slowtok; its own log says more", "internal-error"
    )
    reply.force_close()
    return reply
