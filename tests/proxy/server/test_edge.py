"""The edge: what is an own page, what is relayed, and what is said when relaying itself breaks."""

import gc
import logging

import orjson
import pytest
from multidict import CIMultiDict

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.relay.exchange import Exchange

BROKE = (ValueError, ConnectionResetError, TimeoutError, OSError)


@pytest.mark.parametrize(
    "target",
    [
        "/slowtokens",
        "/slowtok;a",
        "/slowtok%20/health",
        "/slowtok%3F",
        "/SLOWTOK/health",
        "//slowtok/health",
        "http://localhost/slowtok%2Fhealth",
    ],
)
async def test_what_is_no_own_page_is_relayed(
    target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"the engine's")

    await client.ask("GET", target)

    assert (await client.reply())[1] == b"the engine's"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/slowtok/health", 200),
        ("GET", "/%73lowtok/%68ealth?a=b", 200),
        ("GET", "http://localhost:1/slowtok/health", 200),
        ("GET", "/slowtok/none", 404),
        ("GET", "/slowtok//health", 404),
        ("POST", "/slowtok/health", 405),
    ],
)
async def test_own_pages_are_answered_here(
    method: str, target: str, status: int, engine: Upstream, client: Client
) -> None:
    await client.ask(method, target)
    head, _ = await client.reply()

    assert (head.status, engine.count) == (status, 0)


@pytest.mark.parametrize("fields", [["Expect: "], []])
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
async def test_who_expects_nothing_hears_nothing_of_it(
    version: str, fields: list[str], engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")

    await client.ask("POST", "/x", *fields, body=b"body", version=version)

    assert (await client.head()).status == 200


@pytest.mark.parametrize("expected", ["100-continue", "a-miracle"])
async def test_old_client_may_expect_what_it_likes(
    expected: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")

    await client.ask("POST", "/x", f"Expect: {expected}", body=b"body", version="HTTP/1.0")

    assert (await client.head()).first_line == "HTTP/1.0 200 OK"


async def test_unknown_expectation_is_refused_as_openai_clients_know_it(
    engine: Upstream, client: Client
) -> None:
    await client.ask("POST", "/x", "Expect: a-miracle", body=b"body")
    head, body = await client.reply()

    said = orjson.loads(body)["error"]
    assert (head.status, said["code"], engine.count) == (417, "expectation-failed", 0)


async def test_refused_client_is_not_asked_for_its_body_first(client: Client) -> None:
    await client.ask(
        "POST", "/x", "Host: elsewhere.example", "Expect: 100-continue", "Content-Length: 4"
    )

    assert (await client.head()).status == 403


@pytest.mark.parametrize("error", BROKE)
async def test_broken_relay_says_so(
    error: type[Exception],
    proxy: Served,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(_request: ClientRequest, _exchange: Exchange) -> ClientReply:
        raise error

    monkeypatch.setattr(proxy.proxy.relay, "_relay", broken)
    await client.ask("GET", "/x")
    head, body = await client.reply()

    assert (head.status, head.get("connection")) == (500, "close")
    assert orjson.loads(body)["error"]["code"] == "internal-error"
    assert await client.rest() == b""
    assert not _told_by("aiohttp.server", caplog)


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
@pytest.mark.parametrize("error", BROKE)
async def test_reply_whose_relay_broke_has_no_end(
    error: type[Exception],
    version: str,
    proxy: Served,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(request: ClientRequest, _exchange: Exchange) -> ClientReply:
        begun = ClientReply(200, CIMultiDict[str]())
        await begun.prepare(request)
        await begun.write(b"half")
        raise error

    monkeypatch.setattr(proxy.proxy.relay, "_relay", broken)
    await client.ask("GET", "/x", version=version)

    if version == "HTTP/1.0":  # only a reset tells it from a whole one
        with pytest.raises(ConnectionResetError):
            await client.rest()
    else:
        assert (await client.rest()).endswith(b"4\r\nhalf\r\n")
    assert not _told_by("aiohttp.server", caplog)


async def test_nothing_stays_of_requests_that_are_done(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"{}", JSON)
    for _ in range(100):
        await client.ask("POST", CHAT, JSON, body=b"{}")
        await client.reply()

    gc.collect()
    kept = [found for found in gc.get_objects() if isinstance(found, (ClientRequest, ClientReply))]
    assert len(kept) < 20, "each connection may hold on to its last one"


def _told_by(logger: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a logger said that somebody has to look at."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == logger and record.levelno >= logging.ERROR
    ]
