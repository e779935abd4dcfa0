"""Heads and ends of replies: who gets a body, and whose connection stays."""

import errno
import json

import pytest

from fakes.client import CHAT, Client
from fakes.upstream import Upstream
from fakes.wire import LAST_CHUNK, chunk, chunked_head, reply
from slowtok.detectors.case.ending import CUT_SHORT, WHAT_TO_CHECK
from slowtok.proxy.http.response import error_response
from slowtok.proxy.upstream.client import _broken, _unreachable, no_engine
from slowtok.proxy.web.page.serve import FOLDER

NOTHING: list[str] = []


async def answers(client: Client, engine: Upstream) -> bool:
    """Whether the next request over this connection gets its own reply, not the rest of another."""
    engine.reply = reply(b"next")
    await client.ask("GET", "/next")
    head, body = await client.reply()
    return (head.status, body) == (200, b"next")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (["Host: elsewhere.example"], 403),
        (["Origin: http://elsewhere.example"], 403),
        (["Sec-Fetch-Site: cross-site"], 403),
        (["Transfer-Encoding: gzip, chunked"], 501),
        (["Expect: a-miracle"], 417),
    ],
)
async def test_refused_head_request_hears_a_length_and_no_body(
    fields: list[str], status: int, engine: Upstream, client: Client
) -> None:
    await client.ask("HEAD", "/x", *fields)
    if status == 501:
        await client.send(LAST_CHUNK)
    head = await client.head()

    assert head.status == status
    assert int(head.get("content-length") or 0) > 0
    assert await answers(client, engine)


async def test_head_request_to_a_broken_engine_hears_no_body(
    engine: Upstream, client: Client
) -> None:
    await client.ask("HEAD", "/x")
    (await engine.next()).close()
    head = await client.head()

    assert head.status == 502
    assert await answers(client, engine)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_reply_that_never_has_a_body_has_no_length(
    status: str, target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = f"HTTP/1.1 {status}\r\nX-A: b\r\n\r\n".encode()

    await client.ask("POST", target, body=b"{}")
    head = await client.head()

    assert (head.first_line, head.get("x-a")) == (f"HTTP/1.1 {status}", "b")
    assert head.every("content-length") + head.every("transfer-encoding") == NOTHING
    assert await answers(client, engine)


@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_old_client_that_stays_is_told_that_it_may(
    target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"{}")

    await client.ask("POST", target, "Connection: keep-alive", body=b"{}", version="HTTP/1.0")
    head, body = await client.reply()

    assert (head.first_line, head.get("connection"), body) == (
        "HTTP/1.0 200 OK",
        "keep-alive",
        b"{}",
    )
    assert await answers(client, engine)


async def test_old_client_learns_the_end_of_a_body_by_the_connections(
    engine: Upstream, client: Client
) -> None:
    """It knows no chunks: with no length told, a connection that stayed would never end a body."""
    engine.reply = chunked_head() + chunk(b"one") + chunk(b"two") + LAST_CHUNK

    await client.ask("GET", "/x", "Connection: keep-alive", version="HTTP/1.0")
    head = await client.head()

    assert head.every("connection") + head.every("transfer-encoding") == NOTHING
    assert await client.rest() == b"onetwo"


@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_client_that_ends_with_its_reply_is_told_so(
    target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"{}")

    await client.ask("POST", target, "Connection: close", body=b"{}")
    head = await client.head()

    assert head.get("connection") == "close"
    assert await client.rest() == b"{}"


async def test_next_request_is_answered_after_each_that_was_sent_ahead(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")
    own = b"GET /slowtok/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    relayed = own.replace(b"/slowtok/health", b"/x")
    refused = relayed.replace(b"localhost", b"elsewhere.example")
    heard_of = relayed.replace(b"GET", b"HEAD").replace(b"localhost", b"elsewhere.example")

    await client.send((own + relayed + refused + heard_of) * 10)  # beyond what is read ahead
    for _ in range(10):
        assert (await client.reply())[1] == b'{"status":"ok"}'
        assert (await client.reply())[1] == b"ok"
        assert (await client.reply())[0].status == 403
        assert (await client.head()).status == 403


def test_error_has_the_shape_that_openai_clients_read() -> None:
    response = error_response(502, 'it "failed": look', "upstream-error")

    assert response.status == 502
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "error": {
            "message": 'it "failed": look',
            "type": "slowtok_error",
            "param": None,
            "code": "upstream-error",
        }
    }


def test_explanation_advises_what_the_reply_has_said() -> None:
    url = "http://127.0.0.1:1"
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    told = [no_engine("the usual ports"), _broken(ConnectionResetError(), url)]
    errors = (refused, TimeoutError(), OSError(errno.EMFILE, "many"))
    told += [_unreachable(error, url) for error in errors]

    assert {error.ended: error.check for error in told} == WHAT_TO_CHECK


def test_page_gives_the_same_reasons_and_advice() -> None:
    words = (FOLDER / "js" / "endings.js").read_text("utf-8")

    for name, ending in CUT_SHORT.items():
        assert name in words
        assert f'"{ending.reason}"' in words
    for check in WHAT_TO_CHECK.values():
        assert f'"{check}"' in words
