"""The body of an engine's reply, taken out of its framing strictly, byte by byte. Pure.

It knows at any time where it stands: whether the body is over, and whether anything came after it.
"""

import re
from functools import lru_cache

from slowtok.proxy.upstream.reply_head import BadReply, ReplyHead

MAX_LINE_BYTES = 4096  # of a chunk's size with its extensions, which nobody sends
MAX_TRAILER_BYTES = 16 * 1024
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
_KEPT_LINES = 1024  # a stream's chunks are of few sizes
_NO_BYTES = b""


class ReplyBody:
    """Takes a body out of what comes after its head.

    `is_over`: its end was here. `rest` is what came after that: not of this reply.
    `is_between_chunks`: the next byte begins a chunk, or the end. `trailer` holds the field lines
    after the last chunk, each with its end.
    """

    __slots__ = (
        "_begun",
        "_chunked",
        "_in_trailer",
        "_left_bytes",
        "_wants_end",
        "is_between_chunks",
        "is_over",
        "rest",
        "trailer",
    )

    def __init__(self, head: ReplyHead) -> None:
        self._chunked = head.is_chunked
        self._left_bytes = 0 if head.is_chunked else head.length_bytes  # None: until the end
        self._begun = _NO_BYTES  # of a line
        self._wants_end = False  # of a chunk: a CRLF
        self._in_trailer = False
        self.is_over = self._left_bytes == 0 and not head.is_chunked
        self.is_between_chunks = head.is_chunked
        self.rest = _NO_BYTES
        self.trailer = _NO_BYTES

    @property
    def ends_with_the_connection(self) -> bool:
        """Return True if the body ends where the connection does: nothing else says where."""
        return self._left_bytes is None

    def feed(self, data: bytes) -> tuple[list[bytes], BadReply | None]:
        """Return the pieces of the body in `data`, and what was wrong after them, if anything."""
        if self.is_over:
            self.rest += data
            return [], None
        if self._chunked:
            return self._unchunk(data)
        if self._left_bytes is None:
            return ([data] if data else []), None
        piece = data if len(data) <= self._left_bytes else data[: self._left_bytes]
        self._left_bytes -= len(piece)
        if not self._left_bytes:
            self.is_over = True
            self.rest = data[len(piece) :]
        return ([piece] if piece else []), None

    def _unchunk(self, data: bytes) -> tuple[list[bytes], BadReply | None]:
        pieces: list[bytes] = []
        self.is_between_chunks = False
        if self._begun:
            data, self._begun = self._begun + data, _NO_BYTES
        at, end = 0, len(data)
        try:
            while at < end and not self.is_over:
                if self._left_bytes:
                    piece = data[at : at + self._left_bytes]
                    pieces.append(piece)
                    at += len(piece)
                    self._left_bytes -= len(piece)
                    self._wants_end = not self._left_bytes
                    continue
                line_end = data.find(b"\n", at, at + MAX_LINE_BYTES) + 1
                if not line_end:
                    self._begin(data[at:])
                    break
                self._line(data[at:line_end])
                at = line_end
        except BadReply as error:
            return pieces, error
        if self.is_over:
            self.rest = data[at:]
        self.is_between_chunks = not (
            self._left_bytes or self._wants_end or self._begun or self._in_trailer
        )
        return pieces, None

    def _begin(self, line: bytes) -> None:
        """Keep a line that is not here as a whole."""
        if len(line) >= MAX_LINE_BYTES or (self._wants_end and line != b"\r"):
            raise BadReply("a malformed chunk")
        self._begun = line

    def _line(self, line: bytes) -> None:
        if self._wants_end:
            if line != b"\r\n":
                raise BadReply("a chunk that is longer than it says")
            self._wants_end = False
        elif not self._in_trailer:
            self._left_bytes = _size(line)
            self._in_trailer = not self._left_bytes
        elif line == b"\r\n":
            self.is_over = True
        else:
            self.trailer += line
            if not _TRAILER.fullmatch(line) or len(self.trailer) > MAX_TRAILER_BYTES:
                raise BadReply("a malformed trailer")


@lru_cache(_KEPT_LINES)
def _size(line: bytes) -> int:
    found = _SIZE_LINE.fullmatch(line)
    if found is None:
        raise BadReply("a malformed size of a chunk")
    return int(found[1], 16)
