"""Only what nobody can take for anything else passes for whole chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.wire import LAST_CHUNK, chunk
from slowtok.proxy.relay.fast_path import strip_chunk_framing

LARGE = b"a" * 70_000


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"\n",
        b"\r\n",
        LAST_CHUNK,
        b"0\r\n",
        chunk(b"a") + LAST_CHUNK,
        b"0\r\n\r\n" + chunk(b"a"),
        b"00\r\n\r\n",
        b"5\r\nhello",
        b"5\r\nhello\r",
        b"5\r\nhello\n",
        b"5\nhello\r\n",
        b"5\r\nhell\r\n",
        b"5\r\nhelloo\r\n",
        b"5\r\nhello\r\n5",
        b"5\r\nhello\r\n5\r\n",
        b"5\r\nhello\r\n\r\n",
        b"\r\n5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"05\r\nhello\r\n",
        b"0_5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"5\t\r\nhello\r\n",
        b"5;name=value\r\nhello\r\n",
        b"5\r\r\nhello\r\n",
        b"g\r\nhello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        "\N{FULLWIDTH DIGIT FIVE}\r\nhello\r\n".encode(),
        b"100000005\r\nhello\r\n",
        b"ffffffff\r\nhello\r\n",
    ],
)
def test_anything_else_is_left_to_the_parser(read: bytes) -> None:
    assert strip_chunk_framing(read) == b""
    assert strip_chunk_framing(chunk(b"before") + read) == (b"" if read else b"before")


@pytest.mark.parametrize(
    ("read", "payload"),
    [
        (b"5\r\nhello\r\n", b"hello"),
        (b"a\r\n0123456789\r\n", b"0123456789"),
        (b"A\r\n0123456789\r\n", b"0123456789"),
        (b"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n", b"hello world"),
        (b"2\r\n\r\n\r\n", b"\r\n"),
        (b"5\r\n0\r\n\r\n\r\n", b"0\r\n\r\n"),
        (chunk(LARGE) * 3, LARGE * 3),
    ],
    ids=repr,
)
def test_whole_chunks(read: bytes, payload: bytes) -> None:
    assert strip_chunk_framing(read) == payload


@given(st.lists(st.binary(min_size=1), min_size=1))
def test_any_payload(pieces: list[bytes]) -> None:
    read = b"".join(map(chunk, pieces))

    assert strip_chunk_framing(read) == b"".join(pieces)
    assert strip_chunk_framing(read[:-1]) == b""
    assert strip_chunk_framing(read + b"0") == b""
