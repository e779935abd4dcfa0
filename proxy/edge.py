"""The edge towards clients: what is routed where, and what a reply's head is spared.

A worker has the same edge as a proxy that is one process.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http import RawRequestMessage

from slowtok.config.settings import Settings
from slowtok.proxy.client_connection import ClientServer
from slowtok.proxy.client_reply import ClientReply
from slowtok.proxy.client_request import ClientRequest
from slowtok.proxy.entrance import Entrance, Relayed
from slowtok.proxy.held_bytes import HeldBytes
from slowtok.proxy.outputs.errors import error_response
from slowtok.proxy.relay import Relay
from slowtok.proxy.relay_needs import Directory, Watch
from slowtok.proxy.reshaped import break_off

OWN = "/slowtok"
NO_HTTP = "UNKNOWN"  # aiohttp's stand-in for a message that it could not read
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What answers clients: the proxy's own `pages`, and `relay` for all the rest.

    Once `is_stopping`, each connection ends with the reply that it is at.
    """

    pages: web.Application
    relay: Relayed
    entrance: Entrance
    is_stopping: Callable[[], bool]


def make_edge(
    entrance: Entrance,
    relay: Relayed,
    own_pages: Iterable[web.RouteDef],
    *,
    is_stopping: Callable[[], bool],
) -> Edge:
    """Return the edge; who may not pass the entrance gets neither a page nor an engine."""

    async def mend_head(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)
        if is_stopping():
            response.force_close()
            response.headers["Connection"] = "close"

    pages = web.Application(middlewares=[entrance.middleware()])
    pages.on_response_prepare.append(mend_head)
    pages.add_routes(own_pages)
    return Edge(pages=pages, relay=relay, entrance=entrance, is_stopping=is_stopping)


def make_relay(
    settings: Settings, session: aiohttp.ClientSession, engines: Directory, observer: Watch
) -> Relay:
    """Return the relay as it is set.

    What alone is more than all may hold together is never held: room for it would never come.
    """
    limit_bytes = settings.max_held_bytes // settings.workers
    return Relay(
        session,
        engines,
        observer,
        client_timeout_s=settings.client_timeout_s,
        held=HeldBytes(limit_bytes),
        max_body_bytes=min(settings.max_body_bytes, limit_bytes),
        max_reply_bytes=min(settings.max_reply_bytes, limit_bytes),
        annotate=settings.annotate,
        split_nonstreamed=settings.split_nonstreamed,
        records_traces=bool(settings.otlp_endpoint),
    )


def make_runner(edge: Edge, max_head_bytes: int) -> web.AppRunner:
    """Return what serves the edge. aiohttp does the HTTP: it changes no body.

    It cancels a request when its client goes.
    """
    return _Runner(
        edge,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        keepalive_timeout=75,
        max_line_size=max_head_bytes,
        max_field_size=max_head_bytes,
        shutdown_timeout=1.0,  # drain.py has waited before
        handle_signals=False,
    )


class _Runner(web.AppRunner):
    """aiohttp's runner for our own pages; its server relays what is none of them."""

    def __init__(self, edge: Edge, **options: Any) -> None:
        super().__init__(edge.pages, **options)
        self._edge = edge

    async def _make_server(self) -> web.Server:
        pages = await super()._make_server()
        make, handle = _relaying_the_rest(pages, self._edge)
        return ClientServer(handle, request_factory=make, **self._kwargs)


def _relaying_the_rest(pages: web.Server, edge: Edge) -> tuple[Any, Any]:
    """Return what makes a request of a message, and what answers it."""
    make_page_request, show_page = pages.request_factory, pages.request_handler
    refusal_of, relay, is_stopping = edge.entrance.refusal_of, edge.relay, edge.is_stopping

    def make(message: RawRequestMessage, *rest: Any) -> Any:
        if _is_own(message):
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
                await request.go_on()
            return await relay(request)
        except Exception as error:  # noqa: BLE001 - aiohttp could not answer such a request
            if not isinstance(error, ConnectionError):  # its client has gone: nobody hears us
                _log.exception("relaying broke")
            if request.writer.output_size:
                await break_off(request, None)
            return _broken()

    return make, handle


def _is_own(message: RawRequestMessage) -> bool:
    """Say whether aiohttp answers: for one of our own pages, or what it could not read."""
    path = message.url.path_safe  # by which aiohttp finds a page
    return (path.startswith(OWN) and path[len(OWN) :][:1] in ("", "/")) or message.method == NO_HTTP


def _broken() -> ClientReply:
    reply = error_response(500, "slowtok broke: its own log says more", "internal-error")
    reply.force_close()
    return reply
