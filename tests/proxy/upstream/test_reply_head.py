"""The head of a reply: every octet that is allowed stays, and there is one way to read it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowtok.proxy.http.headers import as_bytes
from slowtok.proxy.upstream.reply_head import BadReply, parse_head

OK = b"HTTP/1.1 200 OK\r\n"
TOKEN = st.text("!#$%&'*+-.^_`|~09AZaz", min_size=1, max_size=12)
OCTETS = st.lists(
    st.one_of(st.integers(0x20, 0x7E), st.integers(0x80, 0xFF), st.just(0x09)), max_size=20
).map(lambda octets: bytes(octets).strip(b" \t"))


@given(st.lists(st.tuples(TOKEN.map(lambda name: "X" + name), OCTETS), max_size=20))
def test_fields_stay_as_they_are_to_the_byte(fields: list[tuple[str, bytes]]) -> None:
    raw = OK + b"".join(name.encode() + b": " + value + b"\r\n" for name, value in fields) + b"\r\n"

    head = parse_head(raw, to_head=False)

    assert as_bytes("HTTP/1.1 200 OK", head.headers.copy()) == raw


@pytest.mark.parametrize(
    ("raw", "to_head", "is_chunked", "length_bytes", "should_close"),
    [
        (OK + b"Content-Length: 3\r\n\r\n", False, False, 3, False),
        (OK + b"Content-Length: 3\r\n\r\n", True, False, 0, False),
        (OK + b"\r\n", False, False, None, True),
        (OK + b"Transfer-Encoding: Chunked\r\n\r\n", False, True, None, False),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", True, False, 0, False),
        (b"HTTP/1.1 204 No\r\n\r\n", False, False, 0, False),
        (b"HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n", False, False, 0, False),
        (b"HTTP/1.1 100\r\n\r\n", False, False, 0, False),
        (OK + b"Content-Length: 3\r\nConnection: x, Close\r\n\r\n", False, False, 3, True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", False, False, 3, True),
        (
            b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: Keep-Alive\r\n\r\n",
            *(False, False, 3, False),
        ),
    ],
)
def test_framing(
    raw: bytes, to_head: bool, is_chunked: bool, length_bytes: int | None, should_close: bool
) -> None:
    head = parse_head(raw, to_head=to_head)

    assert (head.is_chunked, head.length_bytes) == (is_chunked, length_bytes)
    assert head.should_close is should_close


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        b"HTTP/1.2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 O\rK\r\n\r\n",
        OK + b" folded\r\n\r\n",
        OK + b": a\r\n\r\n",
        OK + b"a\r\r\n\r\n",
        OK + b"a: b\r\r\n\r\n",
        OK + b"Content-Length: 1234567890123456789\r\n\r\n",
        OK + b"Content-Length: \xb2\r\n\r\n",
    ],
)
def test_what_has_no_one_meaning_is_refused(raw: bytes) -> None:
    with pytest.raises(BadReply):
        parse_head(raw, to_head=False)
