"""What happens to header fields on their way through, both ways. Pure."""

from multidict import CIMultiDict, CIMultiDictProxy

# RFC 9110, section 7.6.1: these describe one connection, not the message.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Not for the engine: its own Host is set; a foreign Origin makes Ollama answer 403 (the proxy has
# judged it already); 100-continue is answered here; a conversation id makes llama-server ignore
# that the client left.
_NOT_UPSTREAM = frozenset({"host", "origin", "expect", "x-conversation-id"})
_CORS_PREFIX = "access-control-"
_OURS = "slowtok-"

Headers = CIMultiDict[str]


def to_upstream(
    headers: CIMultiDictProxy[str],
    *,
    request_id: str,
    traceparent: str,
    own: frozenset[str] = frozenset(),
) -> Headers:
    """Return the request's header for the engine; ids are created where the client gave none.

    `own` are the fields that were meant for the proxy itself, in lower case.
    """
    passed = _end_to_end(headers, _NOT_UPSTREAM | own)
    passed.setdefault("X-Request-Id", request_id)
    passed.setdefault("traceparent", traceparent)
    return passed


def to_client(headers: CIMultiDictProxy[str], *, origin: str | None) -> Headers:
    """Return the reply's header for the client.

    The engine never saw the browser's `Origin`, so its CORS answer is not about it: where there
    was one (and it was allowed), the proxy answers in the engine's place.
    """
    passed = _end_to_end(headers, frozenset())
    if origin is not None:
        for name in [name for name in passed if name.lower().startswith(_CORS_PREFIX)]:
            passed.popall(name, None)
        allow_page(passed, origin)
    return passed


def allow_page(headers: Headers, origin: str) -> None:
    """Tell a browser that a page of this origin may read the reply."""
    headers["Access-Control-Allow-Origin"] = origin
    headers["Access-Control-Expose-Headers"] = "*"
    headers.add("Vary", "Origin")


def _end_to_end(headers: CIMultiDictProxy[str], also_dropped: frozenset[str]) -> Headers:
    named = {
        token.strip().lower()
        for value in headers.getall("Connection", ())
        for token in value.split(",")
    }
    dropped = HOP_BY_HOP | also_dropped | named
    spelled: dict[str, str] = {}  # aiohttp would take a second spelling for a correction
    kept = ((k.lower(), k, v) for k, v in headers.items())
    return CIMultiDict(
        (spelled.setdefault(name, k), v)
        for name, k, v in kept
        if name not in dropped and not name.startswith(_OURS)
    )
