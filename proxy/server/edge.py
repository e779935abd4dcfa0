"""The edge towards clients: routes a request to an own page, to a refusal, or to the relay.

A worker process has the same edge as a proxy that is a single process.
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
    """The handlers of client requests: `pages` for the proxy's own pages, `relay` for all others.

    Once `is_stopping` is true, each connection closes after its current reply.
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
    """Return the edge; a request that `access` refuses reaches neither a page nor an engine."""

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
    """Report that the proxy works; answered in the relaying process, however busy others are."""
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
    """Return the relay for `settings`; `use_fast_path` comes from `self_test.fast_path_works`."""
    return Relay(
        session,
        engines,
        observer,
        client_timeout_s=settings.client_timeout_s,
        memory_budget=MemoryBudget(settings.max_held_bytes, Heap(find_trim()).freed),
        max_body_bytes=settings.max_body_bytes,
        max_reply_bytes=settings.max_reply_bytes,
        annotate=settings.annotate,
        split_nonstreamed=settings.split_nonstreamed,
        records_traces=settings.records_traces,
        use_fast_path=use_fast_path,
    )


def make_runner(edge: Edge, max_head_bytes: int) -> web.AppRunner:
    """Return the aiohttp runner that serves the edge, without the options that change a body.

    aiohttp cancels a request's handler when its client disconnects.
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
    """Return the factory of requests and their handler, for own pages and for the relay."""
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
    """Return True if aiohttp answers: an own page, or a message that it could not parse."""
    path = message.url.path_safe  # by which aiohttp finds a page
    return (path.startswith(OWN) and path[len(OWN) :][:1] in ("", "/")) or is_no_http(message)


def _broken() -> ClientReply:
    reply = error_response(
        500, "internal error in slowtok; its own log says more", "internal-error"
    )
    reply.force_close()
    return reply
