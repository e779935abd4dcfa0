"""Bytes of any kind at the port: the next request works, and nobody else's place is reached.

Bounded and the same in every run; `FUZZ=20000` tries that many others. What was found once stays
here as an example.
"""

import asyncio
import os
import re
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fakes.client import Client, connect
from fakes.proxy import Served, serving
from fakes.recorder import Recorder, recording
from fakes.wire import until
from security.healthy import works_anew

TRIES = int(os.environ.get("FUZZ", "60"))
MOMENT_S = 0.05
AT_ONCE = 8  # raw requests to one proxy: starting one costs more than they do
BOUNDED = settings(
    max_examples=TRIES,
    suppress_health_check=list(HealthCheck),
)
LINE = re.compile(rb"[A-Z]+ [^\s]+ HTTP/1\.1")
WORDS = st.sampled_from(
    [
        *(b"GET", b"POST", b"OPTIONS", b"CONNECT", b"PRI", b" ", b"\t", b"/", b"//", b"*", b"@"),
        *(b"/v1/chat/completions", b"/slowtok/status", b"http://example.com/", b"/..", b"%2e%2e"),
        *(b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b"\r\n", b"\n", b"\r", b"\0", b"\x1b[2J"),
        *(b"Host: localhost", b"Host: example.com", b"Content-Length: ", b"Content-Length: 5"),
        *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: close"),
        *(b"Upgrade: websocket", b"Expect: 100-continue", b"Content-Encoding: gzip", b":", b","),
        *(b"0\r\n\r\n", b"5\r\nhello\r\n", b"-1", b"ffffffffffffffffff", b'{"stream":true}'),
        *(b"a" * 9000, b"X: a\r\n" * 200, b"\xff\xfe", b"\xc3\x28"),
    ]
)
RAW = st.lists(WORDS | st.binary(max_size=12), max_size=14).map(b"".join)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = RAW.map(lambda rest: HEAD + rest)


@BOUNDED
@given(st.lists(RAW | REQUEST, min_size=1, max_size=AT_ONCE))
# A chunk that breaks after the body has begun: its request waited for ten minutes.
@example([HEAD.replace(b"/v1", b"/x") + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"zz\r\n"])
@example([HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"])
@example([b"GET http://example.com/slowtok/status HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@example([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_no_bytes_harm_the_next_request(raws: list[bytes]) -> None:
    asyncio.run(send_all(raws))


async def send_all(raws: list[bytes]) -> None:
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - a fixture would be shared by all tries

    with TemporaryDirectory() as name:
        async with recording() as recorder, serving(Path(name), recorder.url) as proxy:
            await asyncio.gather(*(send(proxy, raw) for raw in raws))
            await works_anew(proxy)
            await until(lambda: proxy.proxy.observer.in_flight == 0)
            assert proxy.proxy.observer.failures == {}
            assert_clear(recorder)


async def send(proxy: Served, raw: bytes) -> None:
    """Say it, wait a moment for an answer, say no more: whatever it was, it comes to an end."""
    client = await connect(proxy.port)
    try:
        await client.send(raw)
        said = await a_moment(client)
        client.end_sending()
        said += await client.rest()
    except ConnectionError:
        return
    finally:
        client.close()
    assert said == b"" or said.startswith(b"HTTP/1.")
    assert not said.startswith(b"HTTP/1.1 500"), said


async def a_moment(client: Client) -> bytes:
    """What comes within it; what ends a request early would hide what it does."""
    try:
        async with asyncio.timeout(MOMENT_S):
            return await client.reader.read(1 << 20)
    except TimeoutError:
        return b""


def assert_clear(recorder: Recorder) -> None:
    """What reached the engine is what slowtok itself would write: its lines, its host."""
    for heard in recorder.relayed:
        assert LINE.match(heard), heard
        host = f"Host: {recorder.url.removeprefix('http://')}\r\n".encode()
        assert heard.count(b"\r\nHost: ") == heard.count(host), heard
