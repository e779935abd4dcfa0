"""The edge towards clients: what is routed where, and what a reply's head is spared.

A worker has the same edge as a proxy that is one process.
"""

from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.proxy.entrance import Handler
from slowtok.proxy.held_bytes import HeldBytes
from slowtok.proxy.relay import PASSED, Relay
from slowtok.proxy.relay_needs import Directory, Watch


def make_edge(
    entrance: Any,
    relay: Handler,
    own_pages: Iterable[web.RouteDef],
    *,
    is_stopping: Callable[[], bool],
) -> web.Application:
    """Return the application: the entrance first, own pages, and the relay for all the rest.

    Once `is_stopping`, each connection ends with the reply that it is at.
    """

    async def close_when_stopping(_: web.Request, response: web.StreamResponse) -> None:
        if is_stopping():
            response.force_close()
            response.headers["Connection"] = "close"

    app = web.Application(middlewares=[entrance])
    app.on_response_prepare.append(_drop_what_was_added)
    app.on_response_prepare.append(close_when_stopping)
    app.add_routes(own_pages)
    app.router.add_route("*", "/{rest:(?s:.*)}", relay)
    return app


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


def make_runner(app: web.Application, max_head_bytes: int) -> web.AppRunner:
    """Return the server: cancels a request when its client goes, changes no body."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        keepalive_timeout=75,
        max_line_size=max_head_bytes,
        max_field_size=max_head_bytes,
        shutdown_timeout=1.0,  # drain.py has waited before
        handle_signals=False,
    )


async def _drop_what_was_added(_request: web.Request, response: web.StreamResponse) -> None:
    """Take back what aiohttp adds: the engine's own field, or its absence, is passed on."""
    passed = response.get(PASSED)
    if passed is None or "Server" not in passed:
        response.headers.popall("Server", None)
    if passed is not None and "Content-Type" not in passed:
        response.headers.popall("Content-Type", None)
