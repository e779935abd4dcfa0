"""Strict parser of a reply's head. Pure.

What two parsers could read differently is refused. What RFC 9112 tells a proxy to repair is
repaired: space before a colon, folded lines, lines that end with LF alone. Names and values keep
their spelling and order, byte by byte.
"""

import re

from multidict import CIMultiDict, CIMultiDictProxy

from slowtok.detectors.case.value import frozen_dataclass

_STARTS_WITH = b"HTTP/1."
_HEAD_END = re.compile(rb"\n\r?\n")
MAX_INTERIM = 16  # replies that announce one; Go's client took 5, and nobody was heard to complain
MAX_FIELDS = 128  # as many as aiohttp's server takes from a client
FINAL = 200  # what is below announces a reply and is none

_SWITCHING = 101
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: (.*))?")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LENGTH = re.compile(r"[0-9]{1,18}")
_BODILESS = frozenset({*range(100, FINAL), 204, 304})
_BLANKS = b" \t"


class BadReply(ValueError):
    """An engine's bytes are no reply, or an ambiguous one. The text is slowtok's own."""


@frozen_dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """A reply's status, its header fields, and the framing of its body.

    `length_bytes` is None if the body is chunked or ends with the connection, and 0 for a reply
    without a body. `should_close`: the connection cannot be reused.
    """

    status: int
    reason: str
    headers: CIMultiDictProxy[str]
    is_chunked: bool
    length_bytes: int | None
    should_close: bool


class HeadReader:
    """Reads heads until the final one; interim replies (1xx) are skipped.

    All of them together may take `max_bytes`. `rest` holds the bytes after the head.
    """

    __slots__ = ("_interim", "_left_bytes", "_partial_head", "_to_head", "rest")

    def __init__(self, max_bytes: int, *, to_head: bool) -> None:
        self._partial_head = b""
        self._left_bytes = max_bytes
        self._interim = 0
        self._to_head = to_head
        self.rest = b""

    @property
    def has_begun(self) -> bool:
        """Whether a part of a head has arrived, but not all of it."""
        return bool(self._partial_head)

    def feed(self, data: bytes) -> ReplyHead | None:
        """Return the head of the final reply once it is complete.

        Raises:
            BadReply: the bytes are no reply, or its head is too long.
        """
        at = max(len(self._partial_head) - 2, 0)  # no end was before
        data = self._partial_head + data
        while (end := _HEAD_END.search(data, at)) is not None:
            raw, data, at = data[: end.end()], data[end.end() :], 0
            self._check_limits(len(raw))
            head = parse_head(raw, to_head=self._to_head)
            if head.status >= FINAL or head.status == _SWITCHING:
                self.rest = data
                return head
            self._left_bytes -= len(raw)
            self._interim += 1
        self._check_limits(len(data))
        if not data.startswith(_STARTS_WITH[: len(data)]):
            raise BadReply("it is not HTTP")
        self._partial_head = data
        return None

    def _check_limits(self, size_bytes: int) -> None:
        if size_bytes > self._left_bytes:
            raise BadReply("a header that is too long")
        if self._interim > MAX_INTERIM:
            raise BadReply("too many interim replies")


def parse_head(raw: bytes, *, to_head: bool) -> ReplyHead:
    """Parse a head; `raw` is all of it, with its empty line.

    `to_head`: the reply answers HEAD, so it has no body, whatever its header says.

    Raises:
        BadReply: it is malformed or ambiguous.
    """
    if b"\0" in raw:
        raise BadReply("a NUL in its header")
    first, *lines = [line.removesuffix(b"\r") for line in raw.split(b"\n")[:-2]]
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None or b"\r" in first:
        raise BadReply("no status line")
    fields = _fields(lines)
    is_old = status_line[1] == b"0"
    status = int(status_line[2])
    headers = CIMultiDictProxy(CIMultiDict(fields))
    is_chunked, length_bytes = _framing(headers, is_old=is_old)
    if to_head or status in _BODILESS:
        is_chunked, length_bytes = False, 0
    connection_options = _tokens(headers, "Connection")
    ends_with_connection = not is_chunked and length_bytes is None
    return ReplyHead(
        status=status,
        reason=_text(status_line[3] or b""),
        headers=headers,
        is_chunked=is_chunked,
        length_bytes=length_bytes,
        should_close=ends_with_connection
        or "close" in connection_options
        or (is_old and "keep-alive" not in connection_options),
    )


def _fields(lines: list[bytes]) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for line in lines:
        if b"\r" in line:
            raise BadReply("a bare CR in its header")
        if line[:1] in (b" ", b"\t"):  # folded; RFC 9112, section 5.2
            if not fields:
                raise BadReply("a folded line without a field")
            name, begun = fields[-1]
            fields[-1] = (name, f"{begun} {_text(line.strip(_BLANKS))}".strip())
            continue
        before, colon, after = line.partition(b":")
        spelled = before.rstrip(_BLANKS)  # RFC 9112, section 5.1
        if not colon or _TOKEN.fullmatch(spelled) is None:
            raise BadReply("a malformed field in its header")
        fields.append((spelled.decode("ascii"), _text(after.strip(_BLANKS))))
    if len(fields) > MAX_FIELDS:
        raise BadReply(f"more than {MAX_FIELDS} fields in its header")
    return fields


def _framing(headers: CIMultiDictProxy[str], *, is_old: bool) -> tuple[bool, int | None]:
    """Return whether the body is chunked, and its length if the header has it."""
    codings, lengths = headers.getall("Transfer-Encoding", []), headers.getall("Content-Length", [])
    if codings:
        # Another coding is about this connection alone: behind the proxy it would be gone, the
        # coded bytes would not. HTTP/1.0 knows none (RFC 9112, section 6.1).
        if is_old or lengths or [coding.lower() for coding in codings] != ["chunked"]:
            raise BadReply("a Transfer-Encoding that cannot be relied on")
        return True, None
    if not lengths:
        return False, None
    if len(lengths) > 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise BadReply("an invalid Content-Length")
    return False, int(lengths[0])


def _tokens(headers: CIMultiDictProxy[str], name: str) -> set[str]:
    values = headers.getall(name, ())
    return {token.strip().lower() for value in values for token in value.split(",")}


def _text(raw: bytes) -> str:
    """Decode octets so that `headers.as_bytes` restores them exactly."""
    return raw.decode("utf-8", "surrogateescape")
