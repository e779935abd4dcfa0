"""What happens to header fields on their way through, both ways. Pure."""

import re
from functools import lru_cache

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
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

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


def to_own_page(headers: CIMultiDictProxy[str]) -> Headers:
    """Return the header of a request for one of the proxy's own pages, which has no body."""
    return _end_to_end(headers, frozenset({"content-length", "expect"}))


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


def without_controls(value: str) -> str:
    """Put a space for each control character, as RFC 9110, section 5.5, wants it."""
    return value if value.isprintable() else _CONTROLS.sub(" ", value)


def _end_to_end(headers: CIMultiDictProxy[str], also_dropped: frozenset[str]) -> Headers:
    dropped = also_dropped
    for value in headers.getall("Connection", ()):
        dropped |= {token.strip().lower() for token in value.split(",")}
    spelled: dict[str, str] = {}  # aiohttp would take a second spelling for a correction
    passed: list[tuple[str, str]] = []
    for spelling, value in headers.items():
        name = _passing(spelling)
        if name is not None and name not in dropped:
            passed.append((spelled.setdefault(name, spelling), without_controls(value)))
    return CIMultiDict(passed)


@lru_cache(maxsize=256)
def _passing(spelling: str) -> str | None:
    """Return a field's name in lower case; None for one that never passes.

    Nor does what cannot be a name: aiohttp takes `Content-Length ` from an engine.
    """
    name = spelling.lower()
    passes = name not in HOP_BY_HOP and not name.startswith(_OURS) and _TOKEN.fullmatch(name)
    return name if passes else None
