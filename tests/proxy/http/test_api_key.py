"""The proxy's own key: who passes, what the others are told, and that it goes no further."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from fakes.client import CHAT
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import JSON, reply
from slowtok.proxy.http.api_key import client_keys, fields_with

KEY = "kiwi-7"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def holding(*fields: tuple[str, str]) -> frozenset[str]:
    return fields_with(CIMultiDictProxy(CIMultiDict(fields)), KEY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", KEY),
        ("Authorization", "Bearer"),
        ("Authorization", "Bearer kiwi"),
        ("Authorization", "Bearer kiwi-77"),
        ("Authorization", "Bearer KIWI-7"),
        ("Authorization", f"Token {KEY}"),
        ("Authorization", basic(KEY, "")),
        ("Authorization", "Basic ***"),
        ("Authorization", ""),
        ("X-Api-Key", ""),
        ("X-Api-Key", f"Bearer {KEY}"),
        ("X-Api-Key", "kiwi-\udce9"),
        ("Cookie", KEY),
    ],
)
def test_not_the_key(name: str, value: str) -> None:
    assert holding((name, value)) == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Authorization", f"Bearer {KEY}"),
        ("authorization", f"bearer  {KEY} "),
        ("Authorization", basic("anybody", KEY)),
        ("X-Api-Key", KEY),
        ("api-key", KEY),
    ],
)
def test_the_key(name: str, value: str) -> None:
    assert holding((name, value)) == {name.lower()}


def test_each_field_is_looked_at() -> None:
    other = ("Authorization", "Bearer engine's")

    assert holding(other, ("X-Api-Key", KEY)) == {"x-api-key"}
    assert holding(other, ("Authorization", f"Bearer {KEY}")) == {"authorization"}


def test_keys_that_a_client_shows_an_engine() -> None:
    fields = CIMultiDict([("Authorization", "a"), ("X-Api-Key", "b"), ("Accept", "c")])

    assert client_keys(fields) == {"authorization": "a", "x-api-key": "b"}


@pytest.fixture
async def guarded(engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    engine.reply = reply(b"{}", JSON)
    async with serving(tmp_path, engine.url, api_key=KEY) as served:
        yield served


@pytest.mark.parametrize("target", [CHAT, "/x", "/slowtok/status", "/slowtok", "/slowtok/healthy"])
@pytest.mark.parametrize("fields", [(), ("Authorization: Bearer other",), ("X-Api-Key: other",)])
async def test_who_does_not_show_it_is_refused(
    guarded: Served, engine: Upstream, target: str, fields: tuple[str, ...]
) -> None:
    client = await guarded.connect()
    await client.ask("POST", target, JSON, *fields, body=b"{}")
    head, body = await client.reply()
    error = json.loads(body)["error"]

    assert head.status == 401
    assert head.every("www-authenticate")[0] == 'Bearer realm="slowtok"'
    assert len(head.every("www-authenticate")) == 1 + target.startswith("/slowtok")
    assert (error["type"], error["code"]) == ("slowtok_error", "invalid_api_key")
    assert KEY not in body.decode() + head.raw.decode()
    assert engine.count == 0


async def test_health_needs_no_key(guarded: Served) -> None:
    assert await guarded.own("/slowtok/health") == {"status": "ok"}


async def test_a_page_may_read_the_refusal(guarded: Served) -> None:
    client = await guarded.connect()
    await client.ask("GET", "/x", "Origin: http://localhost:3000")
    head, _ = await client.reply()

    assert (head.status, head.get("access-control-allow-origin")) == (401, "http://localhost:3000")


async def test_a_foreign_page_is_refused_even_with_the_key(guarded: Served) -> None:
    client = await guarded.connect()
    await client.ask("GET", "/x", "Origin: https://example.com", f"X-Api-Key: {KEY}")

    assert (await client.reply())[0].status == 403


async def test_a_preflight_needs_no_key_for_it_cannot_have_one(guarded: Served) -> None:
    client = await guarded.connect()
    fields = ("Origin: http://localhost:3000", "Access-Control-Request-Method: POST")
    await client.ask("OPTIONS", CHAT, *fields)

    assert (await client.head()).status == 204


@pytest.mark.parametrize(
    ("sent", "passed"),
    [
        ([f"Authorization: Bearer {KEY}"], {}),
        (
            ["Authorization: Bearer engine's", f"X-Api-Key: {KEY}"],
            {"authorization": "Bearer engine's"},
        ),
        ([f"Authorization: Bearer {KEY}", "api-key: engine's"], {"api-key": "engine's"}),
    ],
)
async def test_the_key_goes_no_further_and_others_do(
    guarded: Served, engine: Upstream, sent: list[str], passed: dict[str, str]
) -> None:
    client = await guarded.connect()
    await client.chat(*sent, stream=False)
    head, _ = await client.reply()
    arrival = await engine.next()
    names = ("authorization", "x-api-key", "api-key")

    assert head.status == 200
    assert {name: value for name, value in arrival.head.fields if name in names} == passed


@pytest.mark.parametrize("field", ["Authorization: Bearer k", "X-Api-Key: k", "api-key: k"])
async def test_without_a_key_of_its_own_all_keys_pass(
    proxy: Served, engine: Upstream, field: str
) -> None:
    engine.reply = reply(b"{}", JSON)
    client = await proxy.connect()
    await client.chat(field, stream=False)
    await client.reply()
    name, _, value = field.partition(": ")

    assert (await engine.next()).head.every(name.lower()) == [value]
