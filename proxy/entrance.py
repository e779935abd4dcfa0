"""What stands before everything that is answered: who is refused, and what cannot be relayed."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from slowtok.config.settings import Settings
from slowtok.proxy import api_key, guard
from slowtok.proxy.client_reply import ClientReply
from slowtok.proxy.client_request import ClientRequest
from slowtok.proxy.door import Door
from slowtok.proxy.headers import allow_page
from slowtok.proxy.outputs.errors import as_page, error_response

Relayed = Callable[[ClientRequest], Awaitable[ClientReply]]
Asked = ClientRequest | web.Request  # to be relayed, or for one of the proxy's own pages
_Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SAFE_UPGRADES = ("", "h2c")  # h2c is an offer that a server may ignore (RFC 9113, section 3.1)


class Entrance:
    """Lets in what may pass. `door` is where connections come in, once there is one."""

    def __init__(self, settings: Settings, door: Callable[[], Door | None]) -> None:
        self._own_hosts = (settings.host, *settings.allow_host)
        self._origins = settings.allow_origin
        self._is_local = settings.is_local
        self._key = settings.api_key.get_secret_value()
        self._door = door

    def refusal_of(self, request: ClientRequest) -> ClientReply | None:
        """Return the reply to a request that is not relayed, None where it is."""
        return self._refusal(request) or _unexpected(request)

    def middleware(self) -> Middleware:
        """Return what lets requests in to the proxy's own pages, for aiohttp."""

        @web.middleware
        async def check(request: web.Request, handler: _Page) -> web.StreamResponse:
            refusal = self._refusal(request)
            if refusal is not None:
                return as_page(refusal)
            response = await handler(request)
            origin = request.headers.get("Origin")
            if origin and "Access-Control-Allow-Origin" not in response.headers:
                allow_page(response.headers, origin)
            return response

        return check

    def _refusal(self, request: Asked) -> ClientReply | None:
        """Return the reply to a request that goes no further, None where it may pass."""
        fields = request.headers
        if (door := self._door()) is not None:
            door.heard_of(request.protocol)
        origin = fields.get("Origin")
        foreign = guard.refuse(
            fields.get("Host"),
            origin,
            own_hosts=self._own_hosts,
            allowed=self._origins,
            target=request.raw_path,
            site=fields.get("Sec-Fetch-Site"),
            mode=fields.get("Sec-Fetch-Mode"),
            is_local=self._is_local,
        )
        if foreign is not None:
            return error_response(403, foreign, "refused")
        if (no := _not_relayed(request)) is not None:
            return no
        if origin and request.method == "OPTIONS" and "Access-Control-Request-Method" in fields:
            return _preflight(request, origin)
        refused = api_key.check(request, self._key)
        if refused is not None and origin:
            allow_page(refused.headers, origin)
        return refused


def _not_relayed(request: Asked) -> ClientReply | None:
    fields = request.headers
    upgrade = fields.get("Upgrade", "").lower()
    if upgrade not in _SAFE_UPGRADES or request.method == "CONNECT":
        what = upgrade if upgrade.isalnum() else "a protocol change"
        return _not_implemented(f"slowtok relays HTTP requests only, not {what}")
    # Such a coding is about one connection. It would be gone behind the proxy, the bytes would not.
    if fields.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        return _not_implemented("slowtok takes no Transfer-Encoding but chunked")
    return None


def _unexpected(request: ClientRequest) -> ClientReply | None:
    """Refuse what a client expects that nobody here knows of (RFC 9110, section 10.1.1)."""
    expected = request.headers.get("Expect")
    if not expected or expected.lower() == "100-continue" or request.version < HttpVersion11:
        return None
    return error_response(417, "slowtok knows no Expect but 100-continue", "expectation-failed")


def _not_implemented(message: str) -> ClientReply:
    return error_response(501, message, "not-implemented")


def _preflight(request: Asked, origin: str) -> ClientReply:
    """Answer a browser's question before its request: the engine never sees its origin."""
    asked = request.headers.get("Access-Control-Request-Headers", "*")
    fields = CIMultiDict(
        {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        }
    )
    return ClientReply(204, fields, b"")
