"""The size of an image, by its first bytes."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.stream.prompt_text import image_size

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 1024, 768)
GIF = b"GIF89a" + struct.pack("<HH", 320, 200)
JPEG = (
    b"\xff\xd8"
     b"\xff\xe1" + struct.pack(">H", 1002) + bytes(1000)  # a camera's preview
    + b"\xff\xc4" + struct.pack(">H", 22) + bytes(20)
    + b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, 768, 1024, 3)
)  # fmt: skip
WEBP = b"RIFF" + bytes(4) + b"WEBP"
VP8X = WEBP + b"VP8X" + bytes(8) + (1023).to_bytes(3, "little") + (767).to_bytes(3, "little")
VP8 = WEBP + b"VP8 " + bytes(10) + struct.pack("<HH", 1024, 768)
VP8L = WEBP + b"VP8L" + bytes(4) + b"\x2f" + struct.pack("<I", 1023 | 767 << 14)


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (PNG, (1024, 768)),
        (GIF, (320, 200)),
        (JPEG, (1024, 768)),
        (VP8X, (1024, 768)),
        (VP8, (1024, 768)),
        (VP8L, (1024, 768)),
        (b"%PDF-1.7", None),
        (PNG[:18], None),
        (JPEG[:40], None),
        (b"", None),
    ],
)
def test_size(head: bytes, size: tuple[int, int] | None) -> None:
    encoded = base64.b64encode(head).decode()

    assert image_size(encoded) == size
    if size is not None:
        assert image_size(base64.b64encode(head + bytes(300)).decode()) == size


def test_what_is_no_base64_has_no_size() -> None:
    assert image_size("https://example.com/cat.png") is None


@given(st.binary(max_size=200))
def test_any_bytes_are_read_soundly(tail: bytes) -> None:
    for head in (PNG, GIF, JPEG, VP8X, VP8L, b""):
        found = image_size(base64.b64encode(head[:12] + tail).decode())
        assert found is None or len(found) == 2
