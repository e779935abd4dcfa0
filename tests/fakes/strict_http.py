"""HTTP/1.1 read by the letter of RFC 9112: what a message is that came over a connection.

Made for judging the proxy by, and apart from it: it takes all the bytes that came, and whether more
can come, and says whether a message is whole, cut off or none at all.
"""

import string
from dataclasses import dataclass, replace
from enum import Enum

Fields = tuple[tuple[bytes, bytes], ...]
_TOKEN = frozenset((string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode())
_HEX = frozenset(string.hexdigits.encode())
_DIGITS = frozenset(string.digits.encode())


class State(Enum):
    WHOLE = "whole"
    CUT_OFF = "cut off"  # or not all here yet
    NONE = "none"  # it breaks the rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message; `size_bytes` is how much of what came it takes, where it is whole."""

    state: State
    first: bytes = b""
    fields: Fields = ()
    body: bytes = b""
    trailer: bytes = b""
    size_bytes: int = 0

    def get(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.fields if key == name), None)

    @property
    def status(self) -> int:
        return int(self.first.split(b" ")[1])


class _BrokenError(Exception):
    pass


class _ShortError(Exception):
    pass


def read_request(came: bytes) -> Message:
    """The first message in what a server got; `CUT_OFF` where nothing or only a part is there."""
    return _read(came, ended=False, asked=None)


def read_reply(came: bytes, *, ended: bool, asked: bytes = b"GET") -> Message:
    """The first final reply in what a client got for a request with that method.

    `ended`: the connection ended in order, which is an end where nothing else says so. Never the
    case where it was reset.
    """
    at = 0
    while True:
        found = _read(came[at:], ended=ended, asked=asked)
        if found.state is not State.WHOLE or found.status >= 200 or found.status == 101:
            break
        at += found.size_bytes
    return replace(found, size_bytes=at + found.size_bytes if found.size_bytes else 0)


def _read(came: bytes, *, ended: bool, asked: bytes | None) -> Message:
    """Read one message; `asked` is the method that it answers, None where it is a request."""
    first, body = b"", bytearray()
    fields: Fields = ()
    try:
        first, fields, at = _head(came, is_reply=asked is not None)
        trailer, at = _body(came, at, first, fields, body, ended=ended, asked=asked)
    except (_BrokenError, _ShortError) as error:
        state = State.CUT_OFF if isinstance(error, _ShortError) else State.NONE
        return Message(state=state, first=first, fields=fields, body=bytes(body))
    return Message(
        state=State.WHOLE,
        first=first,
        fields=fields,
        body=bytes(body),
        trailer=trailer,
        size_bytes=at,
    )


def _line(came: bytes, at: int) -> tuple[bytes, int]:
    end = came.find(b"\r\n", at)
    if end < 0:
        raise _ShortError
    line = came[at:end]
    if any(octet in line for octet in b"\r\n\0"):
        raise _BrokenError
    return line, end + 2


def _head(came: bytes, *, is_reply: bool) -> tuple[bytes, Fields, int]:
    first, at = _line(came, 0)
    words = first.split(b" ")
    version = words[0] if is_reply else words[-1]
    if len(words) < (2 if is_reply else 3) or version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _BrokenError
    if is_reply and not (len(words[1]) == 3 and set(words[1]) <= _DIGITS):
        raise _BrokenError
    fields: list[tuple[bytes, bytes]] = []
    while True:
        line, at = _line(came, at)
        if not line:
            return first, tuple(fields), at
        name, colon, value = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN:
            raise _BrokenError
        fields.append((name.lower(), value.strip(b" \t")))


def _body(
    came: bytes,
    at: int,
    first: bytes,
    fields: Fields,
    body: bytearray,
    *,
    ended: bool,
    asked: bytes | None,
) -> tuple[bytes, int]:
    """Fill `body`; returns the trailer, and where the message ends."""
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    lengths = [value for name, value in fields if name == b"content-length"]
    if asked is not None:
        status = int(first.split(b" ")[1])
        if asked == b"HEAD" or status < 200 or status in (204, 304):
            return b"", at
    if codings and (lengths or codings != [b"chunked"] or b"HTTP/1.0" in first):
        raise _BrokenError
    if codings:
        return _chunks(came, at, body)
    if lengths:
        if len(lengths) > 1 or not lengths[0] or not set(lengths[0]) <= _DIGITS:
            raise _BrokenError
        body += came[at : at + int(lengths[0])]
        if len(body) < int(lengths[0]):
            raise _ShortError
        return b"", at + int(lengths[0])
    if asked is None:
        return b"", at
    body += came[at:]
    if not ended:
        raise _ShortError
    return b"", len(came)


def _chunks(came: bytes, at: int, body: bytearray) -> tuple[bytes, int]:
    while True:
        line, at = _line(came, at)
        size = line.partition(b";")[0].rstrip(b" \t")
        if not size or not set(size) <= _HEX:
            raise _BrokenError
        count = int(size, 16)
        if not count:
            break
        body += came[at : at + count]
        at += count
        end = came[at : at + 2]
        if end != b"\r\n":
            raise _ShortError if b"\r\n".startswith(end) else _BrokenError
        at += 2
    trailer = b""
    while True:
        line, at = _line(came, at)
        if not line:
            return trailer, at
        name, colon, _ = line.partition(b":")
        if not colon or not name or not set(name) <= _TOKEN:
            raise _BrokenError
        trailer += line + b"\r\n"
