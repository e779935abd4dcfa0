"""The size of an image in pixels, from the first bytes of its file. Pure.

PNG, JPEG, GIF and WebP, which are what the APIs take. Sources: PNG (ISO/IEC 15948) 11.2.2, JPEG
(ITU-T T.81) B.2.2, GIF89a 18, RFC 9649 2.5 to 2.7.
"""

import base64
import binascii
import struct

HEAD_CHARS = 131_072  # in base64: a camera's preview picture stands before a JPEG's size
NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # of a JPEG's markers from C0 to CF


def image_size(encoded: str) -> tuple[int, int] | None:
    """Return width and height of an image in base64; None where its head does not tell."""
    head = encoded[: min(len(encoded), HEAD_CHARS) // 4 * 4]
    try:
        return size_in(base64.b64decode(head, validate=True))
    except (binascii.Error, ValueError, struct.error):
        return None


def size_in(head: bytes) -> tuple[int, int] | None:
    """Return width and height from the beginning of an image's file.

    Raises:
        struct.error: it is cut off before it tells.
    """
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _pair(">II", head, 16)
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _pair("<HH", head, 6)
    if head.startswith(b"\xff\xd8"):
        return _of_jpeg(head)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _of_webp(head)
    return None


def _of_jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        marker = head[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            height, width = _pair(">HH", head, at + 5)
            return width, height
        at += 2 + struct.unpack_from(">H", head, at + 2)[0]
    return None


def _of_webp(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        low, high = struct.unpack_from("<I", head, 24)[0], struct.unpack_from("<I", head, 26)[0]
        return (low & 0xFFFFFF) + 1, (high >> 8) + 1
    if kind == b"VP8 ":
        width, height = _pair("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return None


def _pair(form: str, head: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, head, at)
    return int(first), int(second)
