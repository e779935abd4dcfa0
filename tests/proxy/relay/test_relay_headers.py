"""Header fields on their way through a running proxy, both ways."""

import re
import uuid

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply


async def test_end_to_end_fields_reach_the_engine_in_order(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")

    await client.ask(
        "POST",
        "/x",
        "Authorization: Bearer k",
        "User-Agent: me",
        "Accept: */*",
        "X-Twice: 1",
        "Cookie: a=b; c=d",
        "x-twice: 2",
        "Content-Type: text/odd; q=1",
        body=b"a",
    )
    await client.reply()

    fields = (await engine.next()).head.fields
    names = [name for name, _ in fields if name not in ("host", "x-request-id", "traceparent")]
    assert names == [
        "authorization",
        "user-agent",
        "accept",
        "x-twice",
        "cookie",
        "x-twice",
        "content-type",
        "content-length",
    ]
    assert dict(fields)["content-type"] == "text/odd; q=1"
    assert [value for name, value in fields if name == "x-twice"] == ["1", "2"]


async def test_nothing_is_added_to_a_bare_request_but_host_and_ids(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", "/x")
    await client.reply()

    names = {name for name, _ in (await engine.next()).head.fields}
    assert names == {"host", "x-request-id", "traceparent"}


async def test_fields_of_one_connection_stay_there(engine: Upstream, client: Client) -> None:
    engine.reply = reply(
        b"ok", "Connection: keep-alive, X-Hop", "Keep-Alive: timeout=5", "X-Hop: 1", "X-End: 1"
    )

    await client.ask(
        "GET",
        "/x",
        "Connection: keep-alive, x-mine",
        "Keep-Alive: 9",
        "X-Mine: 1",
        "TE: trailers",
        "Proxy-Authorization: secret",
        "Proxy-Connection: a",
        "Trailer: X-T",
        "X-Kept: 1",
    )
    head, _ = await client.reply()

    arrived = (await engine.next()).head
    names = {name for name, _ in arrived.fields}
    assert names == {"host", "x-kept", "x-request-id", "traceparent"}
    named = {name for name, _ in head.fields}
    assert named == {"content-length", "x-end", "slowtok-id", "x-request-id", "date"}


async def test_engine_gets_its_own_host_and_no_origin(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", "/x", "Host: localhost:4141", "Origin: http://localhost:5173")
    await client.reply()

    arrived = (await engine.next()).head
    assert arrived.every("host") == [engine.url.removeprefix("http://")]
    assert arrived.get("origin") is None


async def test_cors_is_answered_in_the_engines_place(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "Access-Control-Allow-Origin: *", "Vary: Accept")

    await client.ask("GET", "/x", "Origin: http://localhost:5173")
    head, _ = await client.reply()

    assert head.every("access-control-allow-origin") == ["http://localhost:5173"]
    assert head.get("access-control-expose-headers") == "*"
    assert head.every("vary") == ["Accept", "Origin"]


async def test_cors_of_the_engine_stands_where_no_page_asked(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok", "Access-Control-Allow-Origin: *")

    await client.ask("GET", "/x")
    head, _ = await client.reply()

    assert head.every("access-control-allow-origin") == ["*"]
    assert head.get("vary") is None


async def test_slowtok_fields_of_others_are_dropped(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "slowtok-verdict: normal", "SlowTok-Id: forged")

    await client.ask("GET", "/x", "Slowtok-Annotate: chunk", "slowtok-id: forged")
    head, _ = await client.reply()

    assert not [n for n, _ in (await engine.next()).head.fields if n.startswith("slowtok")]
    assert [name for name, _ in head.fields if name.startswith("slowtok")] == ["slowtok-id"]
    assert head.get("slowtok-id") != "forged"


async def test_ids_of_the_client_are_passed_on(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "X-Request-Id: engine's")
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await client.ask("GET", "/x", "X-Request-ID: mine", f"traceparent: {traceparent}")
    head, _ = await client.reply()

    arrived = (await engine.next()).head
    assert arrived.every("x-request-id") == ["mine"]
    assert arrived.every("traceparent") == [traceparent]
    assert head.get("x-request-id") == "engine's"


async def test_ids_are_created_where_the_client_has_none(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", "/x")
    head, _ = await client.reply()

    arrived = (await engine.next()).head
    assert arrived.get("x-request-id") == head.get("slowtok-id")
    assert head.get("x-request-id") == head.get("slowtok-id")
    assert uuid.UUID(head.get("slowtok-id")).version == 7
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", arrived.get("traceparent") or "")


async def test_conversation_id_is_not_passed_on(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"{}", JSON)  # it makes llama-server go on after its client has left

    await client.ask("POST", CHAT, "X-Conversation-Id: a", body=b"{}")
    await client.reply()

    assert (await engine.next()).head.get("x-conversation-id") is None


@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_server_and_content_type_are_the_engines_or_absent(
    target: str, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"ok", "Server: Python/3.11 aiohttp/3.14.5", "Date: long ago")
    await client.ask("POST", target, body=b"{}")
    own, _ = await client.reply()
    engine.reply = reply(b"ok")
    await client.ask("POST", target, body=b"{}")
    none, _ = await client.reply()

    assert own.every("server") == ["Python/3.11 aiohttp/3.14.5"]
    assert own.every("date") == ["long ago"]
    assert none.get("server") is None
    assert none.get("content-type") is None


@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_several_cookies_stay_several(target: str, engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "Set-Cookie: a=1; Path=/", "X-A: b", "Set-Cookie: b=2, c; HttpOnly")
    await client.ask("POST", target, body=b"{}")
    head, _ = await client.reply()
    await client.ask("POST", target, body=b"{}")
    await client.reply()

    assert head.every("set-cookie") == ["a=1; Path=/", "b=2, c; HttpOnly"]
    await engine.next()
    assert (await engine.next()).head.get("cookie") is None


async def test_fields_that_streams_need_pass(engine: Upstream, client: Client) -> None:
    fields = (SSE + "; charset=utf-8", "Cache-Control: no-cache", "X-Accel-Buffering: no")
    engine.reply = chunked_head(*fields) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK

    await client.chat()
    head, _ = await client.reply()

    assert head.get("content-type") == "text/event-stream; charset=utf-8"
    assert head.get("cache-control") == "no-cache"
    assert head.get("x-accel-buffering") == "no"
    assert head.get("content-length") is None


async def test_non_ascii_field_values_pass(engine: Upstream, client: Client) -> None:
    value = "caf\u00e9".encode().decode("latin-1")  # UTF-8, as most write it
    engine.reply = reply(b"ok", f"X-Name: {value}")

    await client.ask("GET", "/x", f"X-Name: {value}")
    head, _ = await client.reply()

    assert head.get("x-name") == value
    assert (await engine.next()).head.get("x-name") == value


async def test_bytes_that_are_no_utf8_cost_no_request(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "X-Name: caf\u00e9")  # Latin-1: aiohttp leaves the byte out

    await client.ask("GET", "/x", "X-Name: caf\u00e9")
    head, _ = await client.reply()

    assert head.status == 200
    assert (head.get("x-name") or "").startswith("caf")


async def test_large_fields_pass(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok", "X-Large: " + "r" * 32_000)

    await client.ask("GET", "/x", "X-Large: " + "q" * 32_000)
    head, _ = await client.reply()

    assert head.get("x-large") == "r" * 32_000
    assert (await engine.next()).head.get("x-large") == "q" * 32_000


async def test_own_pages_name_no_server(proxy: Served, client: Client) -> None:
    await client.ask("GET", "/slowtok/health")
    head, _ = await client.reply()

    assert head.get("server") is None
    assert head.get("content-type") == "application/json; charset=utf-8"
