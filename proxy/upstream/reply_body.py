"""Strict parser of a reply's body framing: chunked, by length, or until the connection ends. Pure.

It always knows whether the body is over, and whether any byte followed it.
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
    """Extracts the body of a reply from the bytes after its head.

    `is_over`: the body is complete. `rest`: bytes after that, which are not part of the reply.
    `is_between_chunks`: the next byte begins a chunk, or the end of the body. `trailer` holds the
    field lines after the last chunk, each with its line end.
    """

    __slots__ = (
        "_chunked",
        "_expects_chunk_end",
        "_in_trailer",
        "_left_bytes",
        "_partial_line",
        "is_between_chunks",
        "is_over",
        "rest",
        "trailer",
    )

    def __init__(self, head: ReplyHead) -> None:
        self._chunked = head.is_chunked
        self._left_bytes = 0 if head.is_chunked else head.length_bytes  # None: until the end
        self._partial_line = _NO_BYTES  # of a line
        self._expects_chunk_end = False  # of a chunk: a CRLF
        self._in_trailer = False
        self.is_over = self._left_bytes == 0 and not head.is_chunked
        self.is_between_chunks = head.is_chunked
        self.rest = _NO_BYTES
        self.trailer = _NO_BYTES

    @property
    def ends_with_the_connection(self) -> bool:
        """Whether only the end of the connection ends the body."""
        return self._left_bytes is None

    def feed(self, data: bytes) -> tuple[list[bytes], BadReply | None]:
        """Return the pieces of the body in `data`, and the error found after them, if any."""
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
        if self._partial_line:
            data, self._partial_line = self._partial_line + data, _NO_BYTES
        at, end = 0, len(data)
        try:
            while at < end and not self.is_over:
                if self._left_bytes:
                    piece = data[at : at + self._left_bytes]
                    pieces.append(piece)
                    at += len(piece)
                    self._left_bytes -= len(piece)
                    self._expects_chunk_end = not self._left_bytes
                    continue
                line_end = data.find(b"\n", at, at + MAX_LINE_BYTES) + 1
                if not line_end:
                    self._keep_partial_line(data[at:])
                    break
                self._read_line(data[at:line_end])
                at = line_end
        except BadReply as error:
            return pieces, error
        if self.is_over:
            self.rest = data[at:]
        self.is_between_chunks = not (
            self._left_bytes or self._expects_chunk_end or self._partial_line or self._in_trailer
        )
        return pieces, None

    def _keep_partial_line(self, line: bytes) -> None:
        """Keep an incomplete line until the rest of it arrives."""
        if len(line) >= MAX_LINE_BYTES or (self._expects_chunk_end and line != b"\r"):
            raise BadReply("a malformed chunk")
        self._partial_line = line

    def _read_line(self, line: bytes) -> None:
        if self._expects_chunk_end:
            if line != b"\r\n":
                raise BadReply("a chunk that is longer than it says")
            self._expects_chunk_end = False
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
    match = _SIZE_LINE.fullmatch(line)
    if match is None:
        raise BadReply("a malformed size of a chunk")
    return int(match[1], 16)
