"""Access control: which requests are refused, and which ones cannot be relayed.

It runs before anything else is answered.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from slowtok.proxy.http import api_key
from slowtok.proxy.http.headers import allow_page
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply, as_page, error_response
from slowtok.proxy.relay.settings import RelaySettings
from slowtok.proxy.server import origins
from slowtok.proxy.server.connection_limit import ConnectionLimiter

if TYPE_CHECKING:
    from slowtok.proxy.http.aiohttp_private import RawRequestMessage

Relayed = Callable[[ClientRequest], Awaitable[ClientReply]]
Asked = ClientRequest | web.Request  # to be relayed, or for one of the proxy's own pages
_Page = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SAFE_UPGRADES = ("", "h2c")  # h2c is an offer that a server may ignore (RFC 9113, section 3.1)


class AccessPolicy:
    """Decides which requests may pass; `limiter` returns the connection limiter, or None."""

    def __init__(
        self, settings: RelaySettings, limiter: Callable[[], ConnectionLimiter | None]
    ) -> None:
        self._own_hosts = (settings.host, *settings.allow_host)
        self._origins = settings.allow_origin
        self._is_local = settings.is_local
        self._key = settings.api_key
        self._limiter = limiter

    def refusal_of(self, request: ClientRequest) -> ClientReply | None:
        """Return the refusal of a request to be relayed; None if it may pass."""
        return _unclear(request) or self._refusal(request) or _unexpected(request)

    def middleware(self) -> Middleware:
        """Return aiohttp middleware that guards the proxy's own pages."""

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
        """Return the refusal of a request of either kind; None if it may pass."""
        fields = request.headers
        if (limiter := self._limiter()) is not None:
            limiter.note_request(request.protocol)
        origin = fields.get("Origin")
        foreign = origins.refusal_reason(
            fields.get("Host"),
            origin,
            own_hosts=self._own_hosts,
            allowed=self._origins,
            target=request.raw_path,
            site=fields.get("Sec-Fetch-Site"),
            mode=fields.get("Sec-Fetch-Mode"),
            method=request.method,
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
        return _not_implemented("slowtok supports no Transfer-Encoding but chunked")
    # aiohttp reads past what comes after the last chunk: lost without a word, it could be missed.
    if fields.get("Trailer") and "Transfer-Encoding" in fields:
        return _not_implemented("slowtok does not pass on trailers of a request: use header fields")
    return None


def is_unclear(message: "RawRequestMessage") -> bool:
    """Return True if two parsers could disagree on where the request ends.

    Nothing after such a request is read (request smuggling).
    """
    version = message.version
    return version.major != 1 or (message.chunked and version < HttpVersion11)


def _unclear(request: ClientRequest) -> ClientReply | None:
    if not is_unclear(request.message):
        return None
    if request.message.version.major != 1:
        refusal = error_response(505, "slowtok speaks HTTP/1.1 and HTTP/1.0", "version")
    else:  # RFC 9112, section 6.1
        refusal = error_response(400, "HTTP/1.0 has no Transfer-Encoding", "malformed")
    refusal.force_close()
    return refusal


def _unexpected(request: ClientRequest) -> ClientReply | None:
    """Refuse an `Expect` field other than `100-continue` (RFC 9110, section 10.1.1)."""
    expected = request.headers.get("Expect")
    if not expected or expected.lower() == "100-continue" or request.version < HttpVersion11:
        return None
    return error_response(417, "slowtok supports only Expect: 100-continue", "expectation-failed")


def _not_implemented(message: str) -> ClientReply:
    return error_response(501, message, "not-implemented")


def _preflight(request: Asked, origin: str) -> ClientReply:
    """Answer a CORS preflight request; the engine never sees the browser's `Origin`."""
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
