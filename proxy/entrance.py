"""What stands before everything that is answered: who is refused, and what cannot be relayed."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.proxy import api_key, guard
from slowtok.proxy.door import Door
from slowtok.proxy.headers import allow_page
from slowtok.proxy.outputs.errors import error_response
from slowtok.proxy.relay import PASSED

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SAFE_UPGRADES = ("", "h2c")  # h2c is an offer that a server may ignore (RFC 9113, section 3.1)


def make_entrance(settings: Settings, relay: Handler, door: Callable[[], Door | None]) -> Any:
    """Return the middleware. `door` is where connections come in, once there is one."""
    own_hosts = (settings.host, *settings.allow_host)
    is_local, key = settings.is_local, settings.api_key.get_secret_value()

    def refusal_of(request: web.Request) -> web.Response | None:
        return _refusal(request, own_hosts, settings.allow_origin, is_local=is_local)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if (entered := door()) is not None:
            entered.heard_of(request.protocol)
        refusal = refusal_of(request)
        if refusal is not None:
            return refusal
        origin = request.headers.get("Origin")
        if (
            origin
            and request.method == "OPTIONS"
            and "Access-Control-Request-Method" in request.headers
        ):
            return _preflight(request, origin)
        if request.match_info.http_exception is not None:  # no path to route by, as `OPTIONS *`
            handler = relay
        refused = api_key.check(request, key)
        response = await handler(request) if refused is None else refused
        if origin and PASSED not in response:
            allow_page(response.headers, origin)
        return response

    return check


def _refusal(
    request: web.Request, own_hosts: Collection[str], origins: Collection[str], *, is_local: bool
) -> web.Response | None:
    fields = request.headers
    foreign = guard.refuse(
        fields.get("Host"),
        fields.get("Origin"),
        own_hosts=own_hosts,
        allowed=origins,
        target=request.raw_path,
        site=fields.get("Sec-Fetch-Site"),
        mode=fields.get("Sec-Fetch-Mode"),
        is_local=is_local,
    )
    if foreign is not None:
        return error_response(403, foreign, "refused")
    upgrade = fields.get("Upgrade", "").lower()
    if upgrade not in _SAFE_UPGRADES or request.method == "CONNECT":
        what = upgrade if upgrade.isalnum() else "a protocol change"
        return _not_implemented(f"slowtok relays HTTP requests only, not {what}")
    # Such a coding is about one connection. It would be gone behind the proxy, the bytes would not.
    if fields.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        return _not_implemented("slowtok takes no Transfer-Encoding but chunked")
    return None


def _not_implemented(message: str) -> web.Response:
    return error_response(501, message, "not-implemented")


def _preflight(request: web.Request, origin: str) -> web.Response:
    """Answer a browser's question before its request: the engine never sees its origin."""
    asked = request.headers.get("Access-Control-Request-Headers", "*")
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        },
    )
