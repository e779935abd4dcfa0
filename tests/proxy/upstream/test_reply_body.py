"""A body is the same in whatever reads it comes, and its end is known to the byte."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.upstream.reply_body import MAX_LINE_BYTES, MAX_TRAILER_BYTES, ReplyBody
from slowtok.proxy.upstream.reply_head import parse_head

FRAMINGS = {
    "chunks": b"Transfer-Encoding: chunked\r\n",
    "a length": b"Content-Length: 11\r\n",
    "no body": b"Content-Length: 0\r\n",
}
WIRES = {
    "chunks": b"6\r\nhello \r\n5;a=b\r\nworld\r\n0\r\nX-A: a\r\n\r\n",
    "a length": b"hello world",
}


def a_body(framing: str) -> ReplyBody:
    head = b"HTTP/1.1 200 OK\r\n" + FRAMINGS[framing] + b"\r\n"
    return ReplyBody(parse_head(head, to_head=False))


@given(st.sampled_from(sorted(WIRES)), st.sets(st.integers(0, 60)), st.binary(max_size=4))
def test_any_reads_make_the_same_body_and_end(
    framing: str, places: set[int], beyond: bytes
) -> None:
    wire = WIRES[framing] + beyond
    ends = sorted({0, len(wire), *(place for place in places if place < len(wire))})
    body = a_body(framing)
    pieces: list[bytes] = []
    rest = b""
    for begin, end in pairwise(ends):
        if body.is_over:
            rest += wire[begin:end]
            continue
        more, error = body.feed(wire[begin:end])
        pieces += more
        rest += body.rest
        assert error is None

    assert b"".join(pieces) == b"hello world"
    assert body.is_over
    assert rest == beyond
    assert body.trailer == (b"X-A: a\r\n" if framing == "chunks" else b"")


@pytest.mark.parametrize("cut", range(1, len(WIRES["chunks"])))
def test_a_body_in_the_middle_is_not_over(cut: int) -> None:
    wire, body = WIRES["chunks"], a_body("chunks")
    body.feed(wire[:cut])

    assert not body.is_over
    assert body.is_between_chunks is (wire[:cut] in (wire[:11], wire[:25]))


def test_without_a_body_it_is_over_before_it_begins() -> None:
    assert a_body("no body").is_over


@pytest.mark.parametrize(
    ("wire", "right"),
    [
        (b"5\nhello\r\n", b""),
        (b"5\r\nhello\n0\r\n\r\n", b"hello"),
        (b"5\r\nhelloo\r\n", b"hello"),
        (b"5\r\nhello\r\n0\r\n\n", b"hello"),
        (b"5\r\nhello\r\n0\r\nX-A\r\n\r\n", b"hello"),
        (b"5\r\nhello\r\n0\r\nX-A: a\rb\r\n\r\n", b"hello"),
        (b"5;" + b"a" * MAX_LINE_BYTES + b"\r\nhello\r\n", b""),
        (b"0\r\n" + b"X-A: a\r\n" * (MAX_TRAILER_BYTES // 8 + 1), b""),
        (b"1234567890abcdef\r\n", b""),
        (b"\r\n", b""),
        (b"g\r\n", b""),
        (b"5 ;a\x01b\r\nhello\r\n", b""),
    ],
)
def test_what_is_malformed_is_found_after_what_was_right(wire: bytes, right: bytes) -> None:
    pieces, error = a_body("chunks").feed(wire)

    assert b"".join(pieces) == right
    assert error is not None
