"""Header fields passed on in both directions, and the identifiers among them."""

import os
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
# RFC 9110, section 6.5.1: what a message's reader must know before its body.
_NOT_IN_A_TRAILER = frozenset(
    {"content-length", "content-encoding", "content-type", "content-range", "host", "set-cookie"}
)
_CORS_PREFIX = "access-control-"
_OURS = "slowtok-"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

Headers = CIMultiDict[str]
NO_FIELDS: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict())


def to_upstream(
    headers: CIMultiDictProxy[str],
    *,
    request_id: str,
    traceparent: str,
    own: frozenset[str] = frozenset(),
) -> Headers:
    """Return the header of a request for the engine, with ids created if the client sent none.

    `own` are the lower-case names of fields that were meant for the proxy itself.
    """
    passed = _end_to_end(headers, _NOT_UPSTREAM | own)
    passed.setdefault("X-Request-Id", request_id)
    passed.setdefault("traceparent", traceparent)
    return passed


def to_own_page(headers: CIMultiDictProxy[str]) -> Headers:
    """Return the header of a request, without a body, for one of the proxy's own pages."""
    return _end_to_end(headers, frozenset({"content-length", "expect"}))


def to_client(headers: CIMultiDictProxy[str], *, origin: str | None) -> Headers:
    """Return the header of an engine's reply for the client.

    The engine never saw the browser's `Origin`, so its CORS answer is not about it. If there was
    an (allowed) `Origin`, the proxy answers in the engine's place.
    """
    passed = _end_to_end(headers, frozenset())
    if origin is not None:
        for name in [name for name in passed if name.lower().startswith(_CORS_PREFIX)]:
            passed.popall(name, None)
        allow_page(passed, origin)
    return passed


def trailer_to_client(trailer: bytes) -> bytes:
    """Return those trailer fields that may be passed on to the client."""
    if not trailer:
        return trailer
    lines = trailer.splitlines(keepends=True)
    return b"".join(line for line in lines if _may_trail(line.partition(b":")[0]))


def allow_page(headers: Headers, origin: str) -> None:
    """Add the CORS fields that let a page of this origin read the reply."""
    headers["Access-Control-Allow-Origin"] = origin
    headers["Access-Control-Expose-Headers"] = "*"
    headers.add("Vary", "Origin")


def as_bytes(line: str, headers: Headers) -> bytes:
    """Return a head in wire format; every received octet is preserved.

    (aiohttp's own function drops octets that are not UTF-8.)

    Raises:
        ValueError: the start line or a field holds a control character.
    """
    lines = [line, *[f"{name}: {value}" for name, value in headers.items()]]
    all_of_it = "".join(lines)
    if not all_of_it.isprintable() and _CONTROLS.search(all_of_it):
        raise ValueError("a control character in a header")
    lines += ("", "")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def without_controls(value: str) -> str:
    """Replace each control character by a space (RFC 9110, section 5.5)."""
    return value if value.isprintable() else _CONTROLS.sub(" ", value)


def _end_to_end(headers: CIMultiDictProxy[str], also_dropped: frozenset[str]) -> Headers:
    dropped = also_dropped
    for value in headers.getall("Connection", ()):
        dropped |= {token.strip().lower() for token in value.split(",")}
    passed: list[tuple[str, str]] = []
    for spelling, value in headers.items():
        name = _passing(spelling)
        if name is not None and name not in dropped:
            passed.append((spelling, without_controls(value)))
    return CIMultiDict(passed)


def _may_trail(name: bytes) -> bool:
    spelled = name.decode("latin-1")
    return _passing(spelled) is not None and spelled.lower() not in _NOT_IN_A_TRAILER


@lru_cache(maxsize=256)
def _passing(spelling: str) -> str | None:
    """Return a field's name in lower case; None if it is not passed on, or is no valid name."""
    name = spelling.lower()
    passes = name not in HOP_BY_HOP and not name.startswith(_OURS) and _TOKEN.fullmatch(name)
    return name if passes else None


def make_request_id(unix_s: float) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) for a request accepted at `unix_s`."""
    milliseconds = int(unix_s * 1000) & ((1 << 48) - 1)
    drawn = int.from_bytes(os.urandom(10)) & ~(0xF << 76 | 0b11 << 62)
    text = f"{milliseconds << 80 | 0x7 << 76 | 0b10 << 62 | drawn:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def make_traceparent(*, recorded: bool = False) -> str:
    """Return a new W3C traceparent (version 00); `recorded` says that its span will be exported."""
    drawn = os.urandom(24).hex()
    flags = "01" if recorded else "00"
    return f"00-{drawn[:32]}-{drawn[32:]}-{flags}"
