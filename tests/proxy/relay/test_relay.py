"""Requests and replies that merely pass: methods, targets and bodies, both ways."""

import gzip

import pytest

from fakes.client import CHAT, Client
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, chunk, chunked_head, reply

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "REPORT")


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_passes(method: str, engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"made", "X-Engine: a", status="201 Created")

    await client.ask(method, "/thing", body=b"" if method == "TRACE" else b"body")
    head, body = await client.reply()

    arrived = await engine.next()
    assert arrived.head.first_line == f"{method} /thing HTTP/1.1"
    assert head.first_line == "HTTP/1.1 201 Created"
    assert (head.get("x-engine"), body) == ("a", b"made")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/plain/path",
        "/a%2Fb%20c%C3%A9/%7Euser",
        "/%0Aline",
        "//double//slashes",
        "/up/../and/./down",
        "/v1/../slowtok/status",
        "/path;with=params,and@more:!$&'()*+=",
        "/q?a=1&b=%20%2F&c=+&a=2&empty=&bare&x=y=z",
        "/q?url=http://example.com/%3F#notafragment".replace("#", "%23"),
        "/slowtok%2Fstatus",
        "/slowtokens",
        "/" + "long" * 4000,
    ],
)
async def test_target_passes_byte_for_byte(target: str, engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", target)
    head, _ = await client.reply()

    assert head.status == 200
    arrived = await engine.next()
    assert arrived.head.first_line == f"GET {target} HTTP/1.1"


@pytest.mark.parametrize(
    ("sent", "arrives"),
    [
        ("http://localhost:4141/a%20b?c=%2F", "/a%20b?c=%2F"),
        ("http://localhost", "/"),
        ("http://localhost?q=1", "/?q=1"),
    ],
)
async def test_absolute_target_becomes_a_path(
    sent: str, arrives: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", sent)
    head, _ = await client.reply()

    assert head.status == 200
    assert (await engine.next()).head.target == arrives


async def test_options_of_the_whole_server_passes(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"", "Allow: GET, POST", status="204 No Content")

    await client.ask("OPTIONS", "*")
    head = await client.head()

    assert (head.status, head.get("allow")) == (204, "GET, POST")
    assert (await engine.next()).head.first_line == "OPTIONS / HTTP/1.1"


async def test_head_keeps_the_length_and_has_no_body(engine: Upstream, client: Client) -> None:
    engine.reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"

    await client.ask("HEAD", "/model.gguf")
    head = await client.head()
    engine.reply = reply(b"next")
    await client.ask("GET", "/next")

    assert head.get("content-length") == "1234"
    assert (await client.reply())[1] == b"next"


async def test_head_without_a_length_gets_none(engine: Upstream, client: Client) -> None:
    engine.reply = b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n"

    await client.ask("HEAD", "/x")
    head = await client.head()

    assert head.get("x-a") == "b"
    assert head.get("content-length") is None
    assert head.get("transfer-encoding") is None


async def test_range_and_partial_content_pass(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"345", "Content-Range: bytes 3-5/9", status="206 Partial Content")

    await client.ask("GET", "/file", "Range: bytes=3-5", 'If-Range: "tag"')
    head, body = await client.reply()

    arrived = await engine.next()
    assert arrived.head.get("range") == "bytes=3-5"
    assert arrived.head.get("if-range") == '"tag"'
    assert (head.status, head.get("content-range"), body) == (206, "bytes 3-5/9", b"345")


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_a_reply_without_body_has_none(
    status: str, target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = f'HTTP/1.1 {status}\r\nETag: "a"\r\n\r\n'.encode()

    await client.ask("POST", target, body=b"{}")
    head = await client.head()
    engine.reply = reply(b"next")
    await client.ask("GET", "/next")

    assert (head.status, head.get("etag")) == (int(status[:3]), '"a"')
    assert head.get("transfer-encoding") is None
    assert (await client.reply())[1] == b"next"


async def test_redirect_is_not_followed(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"", "Location: http://127.0.0.1:1/away", status="307 Temporary Redirect")

    await client.ask("POST", "/x", body=b"a")
    head, _ = await client.reply()

    assert (head.status, head.get("location")) == (307, "http://127.0.0.1:1/away")
    assert engine.count == 1


async def test_reason_and_unknown_status_pass(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"tea", status="418 I'm a teapot, really")

    await client.ask("GET", "/x")
    head, _ = await client.reply()

    assert head.first_line == "HTTP/1.1 418 I'm a teapot, really"


async def test_interim_replies_of_the_engine_are_not_the_reply(
    engine: Upstream, client: Client
) -> None:
    engine.reply = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + reply(b"real")

    await client.ask("GET", "/x")

    assert (await client.reply())[1] == b"real"


async def test_chunked_upload_is_streamed(engine: Upstream, client: Client) -> None:
    await client.send(
        b"PUT /blob HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await client.send(chunk(b"first"))
    arrived = await engine.next()
    received = await arrived.receive()
    assert b"first" in received  # and the last is not even written yet
    await client.send(chunk(b"last") + LAST_CHUNK)
    while not received.endswith(LAST_CHUNK):
        received += await arrived.receive()

    assert received == chunk(b"first") + chunk(b"last") + LAST_CHUNK
    assert arrived.head.get("content-length") is None
    await arrived.send(reply(b"stored"))
    assert (await client.reply())[1] == b"stored"


async def test_upload_with_a_length_keeps_it_and_is_streamed(
    engine: Upstream, client: Client
) -> None:
    await client.send(b"PUT /blob HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n01234")
    arrived = await engine.next()
    assert await arrived.receive() == b"01234"
    await client.send(b"56789")
    assert await arrived.receive() == b"56789"

    assert arrived.head.every("content-length") == ["10"]
    assert arrived.head.get("transfer-encoding") is None
    await arrived.send(reply(b"stored"))
    assert (await client.reply())[1] == b"stored"


@pytest.mark.parametrize("target", ["/blob", CHAT])
async def test_large_upload_arrives_whole(target: str, engine: Upstream, client: Client) -> None:
    body = b'{"model":"small","messages":[{"content":"' + bytes(b"ab" * (15 << 20)) + b'"}]}'
    engine.reply = reply(b"{}", JSON)

    await client.ask("POST", target, body=body)

    assert (await client.reply())[0].status == 200
    assert await (await engine.next()).body() == body


@pytest.mark.parametrize("target", ["/blob", CHAT])
async def test_gzip_passes_untouched_both_ways(
    target: str, engine: Upstream, client: Client
) -> None:
    packed = gzip.compress(b'{"model": "small", "stream": true}')
    answer = gzip.compress(b'{"choices": []}')

    await client.ask("POST", target, "Content-Encoding: gzip", "Accept-Encoding: gzip", body=packed)
    arrived = await engine.next()
    assert await arrived.body() == packed
    await arrived.send(reply(answer, "Content-Encoding: gzip", JSON))
    head, body = await client.reply()

    assert arrived.head.get("content-encoding") == "gzip"
    assert arrived.head.get("accept-encoding") == "gzip"
    assert (head.get("content-encoding"), body) == ("gzip", answer)


async def test_expect_is_answered_here_and_not_passed_on(engine: Upstream, client: Client) -> None:
    await client.send(
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    interim = await client.head()
    await client.send(b"body")
    arrived = await engine.next()
    body = await arrived.body()
    await arrived.send(reply(b"ok"))

    assert interim.status == 100
    assert (arrived.head.get("expect"), body) == (None, b"body")
    assert (await client.reply())[1] == b"ok"


async def test_http_1_0_client_gets_an_unchunked_reply(engine: Upstream, client: Client) -> None:
    engine.reply = chunked_head() + chunk(b"a") + chunk(b"b") + LAST_CHUNK

    await client.ask("GET", "/x", version="HTTP/1.0")
    head = await client.head()

    assert head.get("transfer-encoding") is None
    assert await client.rest() == b"ab"


async def test_connections_are_reused_on_both_sides(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")
    connections = engine.connections

    for _ in range(3):
        await client.ask("POST", "/x", body=b"a")
        assert (await client.reply())[1] == b"ok"

    assert engine.connections == connections + 1


async def test_connection_close_of_the_engine_is_its_own(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "Connection: close")
    for _ in range(2):
        await client.ask("GET", "/x")
        assert (await client.reply())[0].get("connection") is None

    first, second = await engine.next(), await engine.next()
    assert first.connection != second.connection


async def test_connection_close_of_the_client_is_kept(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", "/x", "Connection: close")
    head, _ = await client.reply()

    assert head.get("connection") == "close"
    assert await client.rest() == b""
    assert (await engine.next()).head.get("connection") is None


async def test_pipelined_requests_are_answered_in_order(engine: Upstream, client: Client) -> None:
    request = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n%s"
    await client.send(request % (b"a", b"1") + request % (b"b", b"2"))
    for target, body in (("/a", b"1"), ("/b", b"2")):
        arrived = await engine.next()
        assert (arrived.head.target, await arrived.body()) == (target, body)
        await arrived.answer(reply(target.encode()))

    assert [(await client.reply())[1] for _ in range(2)] == [b"/a", b"/b"]


async def test_trailer_that_a_request_announces_is_refused(
    engine: Upstream, client: Client
) -> None:
    announced = ("Transfer-Encoding: chunked", "Trailer: X-Sum")
    await client.ask("POST", "/x", *announced)
    await client.send(b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n")
    head, body = await client.reply()

    assert head.status == 501
    assert b"does not pass on trailers of a request" in body
    assert engine.count == 0
    engine.reply = reply(b"ok")
    await client.ask("GET", "/x", "Trailer: X-Sum")  # there is no body for it to come after
    assert (await client.reply())[1] == b"ok"


@pytest.mark.parametrize("upgrade", ["websocket", "TLS/1.0", "h2c, websocket"])
async def test_upgrade_is_refused_clearly(upgrade: str, engine: Upstream, client: Client) -> None:
    await client.ask("GET", "/ws", f"Upgrade: {upgrade}", "Connection: Upgrade")
    head, body = await client.reply()

    assert head.status == 501
    assert b'"code":"not-implemented"' in body
    assert engine.count == 0


async def test_offer_of_h2c_is_ignored(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask(
        "POST",
        "/x",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABk",
        "Connection: Upgrade, HTTP2-Settings",
        body=b"kept",
    )
    head, _ = await client.reply()

    arrived = await engine.next()
    assert head.status == 200
    assert arrived.head.get("upgrade") is None
    assert arrived.head.get("http2-settings") is None
    assert arrived.head.get("content-length") == "4"


async def test_connect_is_refused(engine: Upstream, client: Client) -> None:
    await client.ask("CONNECT", "example.com:443")
    head, _ = await client.reply()

    assert head.status == 501
    assert engine.count == 0


async def test_garbage_instead_of_http_is_refused(engine: Upstream, client: Client) -> None:
    await client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    head = await client.head()

    assert head.status == 400
    assert engine.count == 0
