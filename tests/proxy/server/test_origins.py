"""Who may talk to the proxy: the rules, and that they stand before everything it answers."""

import json
from pathlib import Path

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import serving
from fakes.upstream import Upstream
from fakes.wire import reply
from slowtok.proxy.server.origins import refusal_reason

EVERYWHERE = pytest.mark.parametrize("target", ["/x", CHAT, "/slowtok/status", "/slowtok/nothing"])
LOCAL_HOSTS = (
    None,
    "",
    "localhost",
    "LocalHost:4141",
    "localhost.:4141",
    "app.localhost",
    "127.0.0.1:4141",
    "192.168.1.7",
    "[::1]:4141",
    "[fe80::1%25eth0]:4141",
    "host.docker.internal:4141",
)
FOREIGN_HOSTS = (
    "example.com",
    "example.com:4141",
    "localhost.example.com",
    "127.0.0.1.example.com",
    "notlocalhost",
    "local",
    "user@example.com",
    "localhost@example.com",
    "example.com#localhost",
)
LOCAL_ORIGINS = (
    "http://localhost:5173",
    "https://127.0.0.1",
    "http://[::1]:3000",
    "http://app.localhost",
    "http://0.0.0.0:8080",
    "tauri://localhost",
    "app://obsidian.md",
    "vscode-webview://1a2b",
    "file://",
)
FOREIGN_ORIGINS = (
    "https://example.com",
    "null",
    "",
    "http://localhost.example.com",
    "http://192.168.1.7",
    "http://localhost@example.com",
    "https://example.com/localhost",
    "http://[::1",
    "javascript:alert(1)",
    "chrome-extension://abc",
)


def refused(
    host: str | None = "localhost", origin: str | None = None, **rules: object
) -> str | None:
    own = {"own_hosts": ("127.0.0.1",), "allowed": (), **rules}
    return refusal_reason(host, origin, **own)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_names_of_this_machine_pass(host: str | None) -> None:
    assert refused(host) is None


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_names_do_not(host: str) -> None:
    said = refused(host)

    assert said is not None
    assert "allow_host" in said


def test_names_that_were_allowed_pass_whatever_their_case() -> None:
    assert refused("Box.Example.com:4141", own_hosts=("box.example.COM",)) is None


@pytest.mark.parametrize("origin", LOCAL_ORIGINS)
def test_local_pages_pass(origin: str) -> None:
    assert refused(origin=origin) is None


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_other_pages_do_not(origin: str) -> None:
    said = refused(origin=origin)

    assert said is not None
    assert "allow_origin" in said


@pytest.mark.parametrize("host", ["192.168.1.7:4141", "[fe80::7]:4141", "box.example.com"])
def test_pages_that_came_through_the_proxy_pass(host: str) -> None:
    own = ("box.example.com",)

    assert refused(host.upper(), f"http://{host}", own_hosts=own) is None
    assert refused(host, f"https://{host}", own_hosts=own) is None
    for other in (f"http://{host}:80", "http://192.168.1.7", "http://192.168.1.8:4141"):
        assert refused(host, other, own_hosts=own) is not None
    assert refused("evil.example.com", "http://evil.example.com", own_hosts=own) is not None


def test_pages_that_were_allowed_pass() -> None:
    assert refused(origin="https://example.com", allowed=("https://example.com",)) is None
    assert refused(origin="https://example.com", allowed=("*",)) is None
    assert refused(origin="http://example.com", allowed=("https://example.com",)) is not None


def test_refusal_shows_no_control_characters_and_no_end_of_text() -> None:
    said = refused("a\r\n\x1b[31m\u00e9" + "b" * 1000) or ""

    assert said.isascii()
    assert said.isprintable()
    assert len(said) < 200


@EVERYWHERE
@pytest.mark.parametrize("field", ["Host: rebound.example.com", "Origin: https://example.com"])
async def test_foreign_requests_reach_nothing(
    target: str, field: str, engine: Upstream, client: Client
) -> None:
    await client.ask("POST", target, field, body=b"{}")
    head, body = await client.reply()

    assert head.status == 403
    assert json.loads(body)["error"]["code"] == "refused"
    assert head.get("access-control-allow-origin") is None
    assert engine.count == 0


@pytest.mark.parametrize("target", ["/x", "/slowtok/status"])
async def test_local_requests_pass(target: str, engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"ok")

    await client.ask("GET", target, "Host: 127.0.0.1:4141", "Origin: http://localhost:3000")
    head, _ = await client.reply()

    assert head.status == 200
    assert head.get("access-control-allow-origin") == "http://localhost:3000"


async def test_allowed_requests_pass(engine: Upstream, tmp_path: Path) -> None:
    engine.reply = reply(b"ok")
    page = "https://example.com"
    async with serving(
        tmp_path, engine.url, allow_host=["box.example.com"], allow_origin=[page]
    ) as proxy:
        client = await proxy.connect()
        await client.ask("GET", "/x", "Host: box.example.com", f"Origin: {page}")
        head, _ = await client.reply()

    assert head.status == 200
    assert head.get("access-control-allow-origin") == page


async def test_preflight_is_answered_here(engine: Upstream, client: Client) -> None:
    await client.ask(
        "OPTIONS",
        CHAT,
        "Origin: http://localhost:3000",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization, content-type, x-stainless-os",
        "Access-Control-Request-Private-Network: true",
    )
    head = await client.head()

    assert head.status == 204
    assert head.get("access-control-allow-origin") == "http://localhost:3000"
    assert "POST" in (head.get("access-control-allow-methods") or "")
    allowed = head.get("access-control-allow-headers")
    assert allowed == "authorization, content-type, x-stainless-os"
    assert head.get("vary") == "Origin"
    assert engine.count == 0


async def test_preflight_of_a_foreign_page_is_refused(engine: Upstream, client: Client) -> None:
    await client.ask(
        "OPTIONS", CHAT, "Origin: https://example.com", "Access-Control-Request-Method: POST"
    )
    head, _ = await client.reply()

    assert head.status == 403
    assert engine.count == 0


async def test_own_pages_cannot_be_reached_by_another_spelling(
    engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"engine's")
    own = (
        "/slowtok",
        "/slowtok/",
        "/slowtok/a%0Ab",
        "http://localhost/slowtok/status",
        "/slowtok//x",
    )
    for target in own:
        await client.ask("GET", target)
        _, body = await client.reply()
        assert body != b"engine's", target
    assert engine.count == 0
