"""What an engine may put into its reply to reach a client, a screen or the next reply.

Control characters never pass. What cannot be read in one way only becomes a 502, its connection is
not used again, and the next request works on the same and on a new connection of the client.
"""

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.recorder import HEALTHY, Recorder
from fakes.wire import JSON, Head, reply
from security.healthy import works_anew, works_on

OK = b"HTTP/1.1 200 OK\r\n"
TWO = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
SECOND = OK + b"Content-Length: 4\r\n\r\nevil"

REFUSED = {
    "bare CR in a value": OK + TWO + b"X-A: a\rSet-Cookie: evil=1\r\n\r\n{}",
    "NUL in a value": OK + TWO + b"X-A: a\0b\r\n\r\n{}",
    "CR in the reason": b"HTTP/1.1 200 OK\rSet-Cookie: evil=1\r\n" + TWO + b"\r\n{}",
    "control character in a name": OK + TWO + b"X\x01A: a\r\n\r\n{}",
    "two lengths that agree": OK + TWO + TWO + b"\r\n{}",
    "too many fields": OK + TWO + b"X-B: evil\r\n" * 128 + b"\r\n{}",
    "too long a header": OK + TWO + b"X-B: evil\r\nX-C: " + b"a" * 70_000 + b"\r\n\r\n{}",
    "too many interim replies": b"HTTP/1.1 103 evil\r\n\r\n" * 17 + OK + TWO + b"\r\n{}",
    "coding before chunks": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    "coding in a line of its own": (
        OK + b"Transfer-Encoding: gzip\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n"
    ),
    "coding nobody knows": OK + b"Transfer-Encoding: xchunked\r\n\r\n{}",
    "chunks of HTTP/1.0": b"HTTP/1.0 200 OK\r\n" + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunk: bare LF after it": OK + CHUNKED + b"\r\n2\r\n{}\n0\r\n\r\n",
    "chunk: bare LF after its size": OK + CHUNKED + b"\r\n2\n{}\r\n0\r\n\r\n",
    "chunk: bare LF at the end": OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n\n",
    "trailer without a colon": OK + CHUNKED + b"\r\n2\r\n{}\r\n0\r\nevil\r\n\r\n",
    "another version": b"HTTP/2.0 200 OK\r\n" + TWO + b"\r\n{}",
    "no colon": OK + TWO + b"evil\r\n\r\n{}",
    "length and chunks": OK + TWO + CHUNKED + b"\r\n0\r\n\r\n" + SECOND,
    "chunks and length": OK + CHUNKED + TWO + b"\r\n0\r\n\r\n" + SECOND,
    "two lengths": OK + TWO + b"Content-Length: 40\r\n\r\n{}" + SECOND,
    "list of lengths": OK + b"Content-Length: 2, 2\r\n\r\n{}",
    "signed length": OK + b"Content-Length: +2\r\n\r\n{}",
    "chunk: 0x": OK + CHUNKED + b"\r\n0x2\r\n{}\r\n0\r\n\r\n",
    "chunk: minus": OK + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunk: over 64 bits": OK + CHUNKED + b"\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk: longer than it says": OK + CHUNKED + b"\r\n2\r\n{}x\r\n0\r\n\r\n",
    "chunk: bare LF": OK + CHUNKED + b"\r\n2\n{}\n0\n\n",
    "no HTTP": b"<html>evil",
    "status of two digits": b"HTTP/1.1 99 x\r\n" + TWO + b"\r\n{}",
    "status of four digits": b"HTTP/1.1 1000 x\r\n" + TWO + b"\r\n{}",
    "status 000": b"HTTP/1.1 000 x\r\n" + TWO + b"\r\n{}",
    "another protocol that nobody asked for": (
        b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
}

PLAIN = {
    "escape in a value": (OK + TWO + b"X-A: \x1b[31m\r\n\r\n{}", ["[31m"]),
    "DEL in a value": (OK + TWO + b"X-A: a\x7fb\r\n\r\n{}", ["a b"]),
    "escape in the reason": (b"HTTP/1.1 200 O\x1bK\r\n" + TWO + b"X-A: a\r\n\r\n{}", ["a"]),
    "folded line": (OK + TWO + b"X-A: a\r\n b\r\n\r\n{}", ["a b"]),
    "bare LF": ((OK + TWO + b"X-A: a\r\n\r\n").replace(b"\r\n", b"\n") + b"{}", ["a"]),
    "space before a colon": (OK + b"Content-Length : 2\r\nX-A: a\r\n\r\n{}", ["a"]),
    "space before another colon": (OK + TWO + b"X-A : a\r\n\r\n{}", ["a"]),
    "several values of one name": (OK + TWO + b"X-A: a\r\nx-a: b\r\n\r\n{}", ["a", "b"]),
    "trailer that says something of the framing": (
        OK + CHUNKED + b"X-A: a\r\n\r\n2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n",
        ["a"],
    ),
    "many interim replies": (
        b"HTTP/1.1 103 Early Hints\r\nX-A: evil\r\n\r\n" * 5 + OK + TWO + b"X-A: a\r\n\r\n{}",
        ["a"],
    ),
    "our own names": (
        OK + TWO + b"slowtok-verdict: evil\r\nSlowTok-Id: evil\r\nX-A: a\r\n\r\n{}",
        ["a"],
    ),
}


async def ask(client: Client, path: str) -> None:
    if path == CHAT:
        await client.chat(stream=False)
    else:
        await client.ask("GET", path)


@pytest.mark.parametrize("path", ["/x", CHAT])
@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
async def test_reply_that_is_not_clear_becomes_an_error(
    raw: bytes, path: str, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    recorder.engine.reply = raw
    await ask(client, path)
    head, body = await client.reply()

    assert head.status == 502
    assert b"evil" not in head.raw + body
    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "upstream-error"
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)
    await works_anew(proxy)


@pytest.mark.parametrize("path", ["/x", CHAT])
@pytest.mark.parametrize(("raw", "values"), PLAIN.values(), ids=PLAIN)
async def test_odd_reply_arrives_plain(
    raw: bytes, values: list[str], path: str, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    recorder.engine.reply = raw
    await ask(client, path)
    head, body = await client.reply()

    assert (head.status, body) == (200, b"{}")
    assert [value.strip() for value in head.every("x-a")] == values
    assert "evil" not in head.raw.decode()
    assert is_clean(head)
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)
    await works_anew(proxy)


def is_clean(head: Head) -> bool:
    """Say whether a head has no control character but the ends of its lines."""
    return all(line.isprintable() for line in head.raw.decode().split("\r\n"))


async def test_redirect_is_passed_on_and_not_followed(proxy: Served, recorder: Recorder) -> None:
    client = await proxy.connect()
    recorder.engine.reply = reply(b"", "Location: http://127.0.0.1:1/", status="307 Moved")
    await client.chat(stream=False)
    head, _ = await client.reply()

    assert (head.status, head.get("location")) == (307, "http://127.0.0.1:1/")
    assert recorder.engine.count == 1
    recorder.engine.reply = reply(HEALTHY, JSON)
    await works_on(client)
    await works_anew(proxy)
