"""The page's files as they are served; no browser is needed."""

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import listening
from fakes.wire import Head
from slowtok.proxy.web.page.serve import FOLDER, HEADERS, read_files

FILES = read_files()
OWN = sorted(name for name in FILES if not name.startswith("vendor/"))
KEY = "k" * 20


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Served]:
    async with listening("llama-server") as engine, serving(tmp_path, engine.url) as served:
        yield served


@pytest.fixture
async def client(proxy: Served) -> Client:
    return await proxy.connect()


async def get(client: Client, target: str, *fields: str) -> tuple[Head, bytes]:
    await client.ask("GET", target, *fields)
    return await client.reply()


async def test_page_comes_with_a_policy_that_allows_own_files_only(client: Client) -> None:
    head, body = await get(client, "/slowtok/")

    assert head.status == 200
    assert head.get("content-type") == "text/html; charset=utf-8"
    assert body == FILES["index.html"].body
    for name, value in HEADERS.items():
        assert head.every(name.lower()) == [value]
    policy = head.get("content-security-policy") or ""
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert head.get("x-content-type-options") == "nosniff"


@pytest.mark.parametrize("name", sorted(FILES))
async def test_each_file_is_served_once_and_then_known(name: str, client: Client) -> None:
    head, body = await get(client, f"/slowtok/page/{name}")
    tag = head.get("etag")
    await client.ask("GET", f"/slowtok/page/{name}", f"If-None-Match: {tag}")
    again = await client.head()

    assert (head.status, body) == (200, (FOLDER / name).read_bytes())
    assert (again.status, again.get("etag")) == (304, tag)


@pytest.mark.parametrize(
    "name",
    [
        "serve.py",
        "../api.py",
        "..%2fapi.py",
        "%2e%2e/api.py",
        "js",
        "js/",
        "none.js",
        "vendor/README.md",
    ],
)
async def test_nothing_else_is_served(name: str, client: Client) -> None:
    head, _ = await get(client, f"/slowtok/page/{name}")

    assert head.status == 404


async def test_without_its_slash_it_moves(client: Client) -> None:
    head, _ = await get(client, "/slowtok")

    assert (head.status, head.get("location")) == (308, "/slowtok/")


async def test_foreign_host_gets_no_page(client: Client) -> None:
    head, _ = await get(client, "/slowtok/", "Host: attacker.example")

    assert head.status == 403


async def test_api_key_is_asked_for_by_the_browser(tmp_path: Path) -> None:
    async with (
        listening("llama-server") as engine,
        serving(tmp_path, engine.url, api_key=KEY) as served,
    ):
        head, _ = await get(await served.connect(), "/slowtok/")

    assert head.status == 401
    assert any(value.startswith("Basic ") for value in head.every("www-authenticate"))


def test_what_the_page_refers_to_is_there() -> None:
    index = FILES["index.html"].body.decode()
    named = re.findall(r'(?:src|href)="(page/[^"]+)"', index)
    imported = {
        (name, module)
        for name in OWN
        for module in re.findall(r'from "\./([^"]+)"', FILES[name].body.decode())
    }

    assert len(named) == 5
    assert [name for name in named if name.removeprefix("page/") not in FILES] == []
    assert [pair for pair in imported if f"js/{pair[1]}" not in FILES] == []
    reached = {"main.js", *(module for _, module in imported)}
    assert reached == {name.removeprefix("js/") for name in OWN if name.startswith("js/")}


@pytest.mark.parametrize("name", OWN)
def test_nothing_from_elsewhere_nothing_inline_no_markup_from_text(name: str) -> None:
    text = FILES[name].body.decode()
    elsewhere = re.findall(r"""(?:https?:)?//[\w.-]+\.\w+""", re.sub(r"(?m)^\s*//.*$", "", text))

    assert [found for found in elsewhere if found != "http://www.w3.org"] == []
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    if name.endswith(".html"):
        assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", text)
        assert all('src="' in tag for tag in re.findall(r"<script[^>]*>", text))


def test_no_file_is_too_long_to_read() -> None:
    lengths = {
        name: FILES[name].body.count(b"\n") for name in OWN if name.endswith((".js", ".html"))
    }

    assert {name: lines for name, lines in lengths.items() if lines > 250} == {}


def test_vendored_files_are_those_that_the_note_names() -> None:
    note = (FOLDER / "vendor" / "README.md").read_text(encoding="utf-8")
    sums = dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", note, re.MULTILINE))
    held = {name.removeprefix("vendor/") for name in FILES if name.startswith("vendor/")}

    assert set(sums) == held
    for name, wanted in sums.items():
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == wanted
    assert "Permission is hereby granted" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text()
