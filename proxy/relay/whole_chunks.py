"""Recognises reads that are nothing but whole chunks, as nearly every read of a stream is.

Only what no two readers could take for different things passes for such: a size is plain, written
without a sign, a zero before it or an extension, and the chunk is exactly as long.
"""

import re
from functools import lru_cache

_SIZE_LINE = re.compile(rb"[1-9a-fA-F][0-9a-fA-F]{0,7}\r\n")
_LONGEST = 10  # of the size's line
_KEPT_LINES = 1024  # a stream's chunks are of few sizes


def strip_chunk_framing(read: bytes) -> bytes:
    """Return what the chunks in `read` hold; nothing where it is not exactly whole chunks.

    The last chunk, which is empty, is none of them.
    """
    pieces = []
    at = 0
    while at < len(read):
        begin = read.find(b"\n", at, at + _LONGEST) + 1
        end = begin + _size(read[at:begin])
        at = end + 2
        if end == begin or read[end:at] != b"\r\n":
            return b""
        pieces.append(read[begin:end])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@lru_cache(_KEPT_LINES)
def _size(line: bytes) -> int:
    """Return the size that a line tells; 0 where it is anything but a size."""
    return int(line, 16) if _SIZE_LINE.fullmatch(line) else 0
