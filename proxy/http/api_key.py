"""The proxy's own API key: who may use the proxy, and that the key goes no further."""

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
    """Return the refusal of a request that does not show `key`, or None where it may pass.

    In one to be relayed the fields that held the key are noted: they are meant for nobody else.
    """
    if not key or request.path == OPEN_PATH:
        return None
    if own := fields_with(request.headers, key):
        if isinstance(request, ClientRequest):
            request.own_fields = own
        return None
    said = "this slowtok requires an API key: send it as Authorization: Bearer KEY, or as x-api-key"
    response = error_response(401, said, "invalid_api_key")
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
    """Return the fields by which a client shows who it is to an engine."""
    return {name: headers[name] for name in FIELDS if name in headers}


def _shown(name: str, value: str) -> bytes:
    """Return the key in a field: all of it, what follows `Bearer`, or the password of `Basic`."""
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
