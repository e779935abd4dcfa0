"""Requests that two readers could read differently: refused, or made plain before they go on.

Sent as bytes to the real proxy, in front of an engine that keeps every byte it gets. A refused one
ends its connection, because where the next request begins is not known; the next one on a new
connection works. A plain one leaves its connection in use.
"""

import pytest

from fakes.proxy import Served
from fakes.recorder import HEALTHY, Recorder
from fakes.wire import until
from security.healthy import works_anew, works_on

LINE = b"POST /target HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
HIDDEN = b"0\r\n\r\n" + SMUGGLED

REFUSED = {
    "length and chunks": LINE + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + HIDDEN,
    "chunks and length": LINE + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + HIDDEN,
    "two lengths": LINE + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "two equal lengths": LINE + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + SMUGGLED,
    "list of lengths": LINE + b"Content-Length: 0, 0\r\n\r\n" + SMUGGLED,
    "signed length": LINE + b"Content-Length: +0\r\n\r\n" + SMUGGLED,
    "negative length": LINE + b"Content-Length: -1\r\n\r\n" + SMUGGLED,
    "hexadecimal length": LINE + b"Content-Length: 0x1\r\n\r\n" + SMUGGLED,
    "length with an underscore": LINE + b"Content-Length: 0_0\r\n\r\n" + SMUGGLED,
    "length over 64 bits": LINE + b"Content-Length: 18446744073709551616\r\n\r\n" + SMUGGLED,
    "empty length": LINE + b"Content-Length: \r\n\r\n" + SMUGGLED,
    "coding nobody knows": LINE + b"Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "chunked is not last": LINE + b"Transfer-Encoding: chunked, identity\r\n\r\n" + HIDDEN,
    "chunked twice": LINE + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + HIDDEN,
    "coding after chunked": (
        LINE + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + HIDDEN
    ),
    "identity": LINE + b"Transfer-Encoding: identity\r\n\r\n" + HIDDEN,
    "vertical tab before chunked": LINE + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + HIDDEN,
    "space before a colon": LINE + b"Transfer-Encoding : chunked\r\n\r\n" + HIDDEN,
    "space before another colon": LINE + b"X-A : a\r\n\r\n" + SMUGGLED,
    "folded line": LINE + b"X-A: a\r\n b\r\n\r\n" + SMUGGLED,
    "folded coding": LINE + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + HIDDEN,
    "first field folded": b"POST /target HTTP/1.1\r\n Host: localhost\r\n\r\n" + SMUGGLED,
    "bare LF everywhere": (LINE + b"\r\n").replace(b"\r\n", b"\n") + SMUGGLED,
    "bare LF in a field": LINE + b"X-A: a\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "bare LF before the end": LINE + b"X-A: a\r\n\n" + SMUGGLED,
    "bare CR in a field": LINE + b"X-A: a\rX-B: b\r\n\r\n" + SMUGGLED,
    "NUL in a value": LINE + b"X-A: a\0b\r\n\r\n" + SMUGGLED,
    "NUL in a name": LINE + b"X\0A: a\r\n\r\n" + SMUGGLED,
    "NUL in the target": b"POST /target\0 HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "escape in a value": LINE + b"X-A: \x1b[31m\r\n\r\n" + SMUGGLED,
    "no name": LINE + b": a\r\n\r\n" + SMUGGLED,
    "no colon": LINE + b"a\r\n\r\n" + SMUGGLED,
    "no token": LINE + b"X(A): a\r\n\r\n" + SMUGGLED,
    "two hosts": LINE + b"Host: localhost\r\n\r\n" + SMUGGLED,
    "two hosts, a foreign one": LINE + b"Host: example.com\r\n\r\n" + SMUGGLED,
    "no host": b"POST /target HTTP/1.1\r\n\r\n" + SMUGGLED,
    "HTTP/1.2": b"POST /target HTTP/1.2\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "HTTP/0.9 and more": b"GET /target\r\n\r\n" + SMUGGLED,
    "HTTP/1.0 with chunks and more": CHUNKED.replace(b"1.1", b"1.0") + HIDDEN,
    "HTTP/1.0 with chunks that stays": (
        CHUNKED.replace(b"1.1\r\n", b"1.0\r\nConnection: keep-alive\r\n") + HIDDEN
    ),
    "own page in HTTP/1.0 with chunks": (
        CHUNKED.replace(b"1.1", b"1.0").replace(b"/target", b"/slowtok/health") + HIDDEN
    ),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    "lower case method": b"post /target HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "no method": b"P(ST /target HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "tab for a space": b"POST\t/target HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "space in the target": b"POST /target x HTTP/1.1\r\nHost: localhost\r\n\r\n" + SMUGGLED,
    "chunk: bare LF in an extension": CHUNKED + b"1;a\nb\r\nA\r\n" + HIDDEN,
    "chunk: bare LF": CHUNKED + b"1\nA\n0\n\n" + SMUGGLED,
    "chunk: space after the size": CHUNKED + b"1 \r\nA\r\n" + HIDDEN,
    "chunk: 0x": CHUNKED + b"0x1\r\nA\r\n" + HIDDEN,
    "chunk: plus": CHUNKED + b"+1\r\nA\r\n" + HIDDEN,
    "chunk: minus": CHUNKED + b"-1\r\nA\r\n" + HIDDEN,
    "chunk: over 64 bits": CHUNKED + b"10000000000000001\r\nA\r\n" + HIDDEN,
    "chunk: longer than it says": CHUNKED + b"1\r\nABC\r\n" + HIDDEN,
    "trailer with a length": CHUNKED + b"0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a field too long": LINE + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n" + SMUGGLED,
    "a target too long": b"GET /target" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n" + SMUGGLED,
    "too many fields": LINE + b"X-A: a\r\n" * 200 + b"\r\n" + SMUGGLED,
}

PLAIN = {
    "several values of one name": (
        LINE + b"X-A: 1\r\nx-a: 2\r\nContent-Length: 2\r\n\r\n{}",
        b"{}",
    ),
    "chunks with an extension": (CHUNKED + b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\n\r\n", b"{}"),
    "chunks with a trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nX-Trailer: t\r\n\r\n", b"{}"),
    "chunked in capitals": (
        LINE + b"Transfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"{}",
    ),
    "length is of one connection": (
        LINE + b"Connection: content-length, host\r\nContent-Length: 2\r\n\r\n{}",
        b"{}",
    ),
    "empty lines before": (b"\r\n\r\n" + LINE + b"Content-Length: 2\r\n\r\n{}", b"{}"),
    "body is a request": (
        LINE + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
        SMUGGLED,
    ),
}

NOT_OURS = {
    "coding that we would not undo": LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding": LINE + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT to a path": b"CONNECT /target HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "web socket": LINE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "web socket by another name": LINE + b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n\r\n",
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
async def test_ambiguous_request_is_refused(raw: bytes, proxy: Served, recorder: Recorder) -> None:
    client = await proxy.connect()
    await client.send(raw)

    head, _ = await client.reply()

    assert head.status == 400
    assert await client.rest() == b"", "no second reply, and no more of this connection"
    assert recorder.relayed == []
    await works_anew(proxy)
    assert b"smuggled" not in recorder.everything()


@pytest.mark.parametrize(("raw", "body"), PLAIN.values(), ids=PLAIN)
async def test_odd_request_arrives_plain(
    raw: bytes, body: bytes, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    await client.send(raw)
    head, answer = await client.reply()

    arrived = await recorder.engine.next()
    lengths, codings = arrived.head.every("content-length"), arrived.head.every("transfer-encoding")
    assert (head.status, answer) == (200, HEALTHY)
    assert arrived.head.first_line == "POST /target HTTP/1.1"
    assert len(lengths + codings) == 1, "one framing, ours"
    assert await arrived.body() == body
    assert arrived.head.get("x-trailer") is None
    await works_on(client)
    await works_anew(proxy)
    assert recorder.engine.count == 3


@pytest.mark.parametrize("raw", NOT_OURS.values(), ids=NOT_OURS)
async def test_what_is_no_plain_request_is_refused_politely(
    raw: bytes, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    await client.send(raw)
    head, _ = await client.reply()

    assert head.status == 501
    assert recorder.relayed == []
    if head.get("connection") == "close":
        assert b"Upgrade" in raw or raw.startswith(b"CONNECT")
        assert await client.rest() == b""
    else:
        await works_on(client)
    await works_anew(proxy)


@pytest.mark.parametrize("target", [b"/target", b"/slowtok/health"])
@pytest.mark.parametrize(("version", "ours"), [(b"2.0", "1.1"), (b"0.9", "1.0")])
async def test_another_version_is_refused_in_ours(
    target: bytes, version: bytes, ours: str, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    await client.send(b"GET %b HTTP/%b\r\nHost: localhost\r\n\r\n" % (target, version))
    head, _ = await client.reply()

    assert head.first_line.startswith(f"HTTP/{ours} 505 ")
    assert await client.rest() == b""
    assert recorder.relayed == []
    await works_anew(proxy)


async def test_offer_of_http2_is_declined_and_ends_the_connection(
    proxy: Served, recorder: Recorder
) -> None:
    """What came in one read with it is lost: who sent it must not wait for an answer."""
    client = await proxy.connect()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    await client.send(b"GET /target HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n" + SMUGGLED)
    head, body = await client.reply()

    assert (head.status, head.get("connection"), body) == (200, "close", HEALTHY)
    assert await client.rest() == b""
    assert recorder.engine.count == 1
    await works_anew(proxy)


BROKEN_CHUNKS = {
    "no size": b"zz\r\n",
    "longer than it says": b"1\r\nABC\r\n",
    "bare LF": b"1\nA\n",
    "over 64 bits": b"fffffffffffffffff\r\n",
}


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        *((b"/target", broken) for broken in BROKEN_CHUNKS.values()),
        (b"/v1/chat/completions", BROKEN_CHUNKS["no size"]),
    ],
    ids=[*BROKEN_CHUNKS, "no size, in a body that is read whole"],
)
async def test_body_that_breaks_later_never_looks_whole(
    broken: bytes, path: bytes, proxy: Served, recorder: Recorder
) -> None:
    """Its head has been relayed by then: the engine must see an end that is none."""
    client = await proxy.connect()
    await client.send(CHUNKED.replace(b"/target", path) + b"1\r\n{\r\n")
    if path == b"/target":
        await until(lambda: b"1\r\n{\r\n" in recorder.everything())

    await client.send(broken + HIDDEN)
    await client.rest()

    assert not any(b"0\r\n\r\n" in heard for heard in recorder.relayed)
    assert b"smuggled" not in recorder.everything()
    await works_anew(proxy)
