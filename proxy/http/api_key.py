"""The proxy's own API key: checks it, and keeps it from being passed on to the engine."""

import base64
import binascii
import hmac
from collections.abc import Mapping

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply, error_response

FIELDS = ("authorization", "x-api-key", "api-key")  # where clients put a key: OpenAI's, two others
OPEN_PATH = "/slowtok/health"  # for those who watch over the process and have no key


def check(request: ClientRequest | web.Request, key: str) -> ClientReply | None:
    """Return the refusal of a request without `key`; None if it may pass.

    In a request to be relayed, the fields that held the key are noted, so that they are removed.
    """
    if not key or request.path == OPEN_PATH:
        return None
    if own := fields_with(request.headers, key):
        if isinstance(request, ClientRequest):
            request.own_fields = own
        return None
    message = (
        "this slowtok requires an API key: send it as Authorization: Bearer KEY, or as x-api-key"
    )
    response = error_response(401, message, "invalid_api_key")
    response.headers["WWW-Authenticate"] = 'Bearer realm="slowtok"'
    if request.path.startswith("/slowtok"):  # a browser then asks for it: any user, the key
        response.headers.add("WWW-Authenticate", 'Basic realm="slowtok", charset="UTF-8"')
    return response


def fields_with(headers: CIMultiDictProxy[str], key: str) -> frozenset[str]:
    """Return the names of the fields that hold `key`, each compared in constant time."""
    wanted = key.encode()
    return frozenset(
        name
        for name in FIELDS
        for value in headers.getall(name, ())
        if hmac.compare_digest(_shown(name, value), wanted)
    )


def client_keys(headers: CIMultiDict[str]) -> Mapping[str, str]:
    """Return the fields in which a client authenticates itself to an engine."""
    return {name: headers[name] for name in FIELDS if name in headers}


def _shown(name: str, value: str) -> bytes:
    """Return the key in a field: all of it, the token after `Bearer`, or `Basic`'s password."""
    text = value.strip().encode("utf-8", "surrogateescape")
    if name != "authorization":
        return text
    scheme, _, rest = text.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
