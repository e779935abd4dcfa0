"""DNS rebinding and cross-site requests, as they come over the wire: to an engine, to slowtok.

Each refusal leaves the connection in use; the next healthy request works on it and on a new one.
The rules themselves are in tests/proxy/server/test_origins.py.
"""

import sys
from pathlib import Path

import pytest

from fakes.client import CHAT, connect
from fakes.commands import served
from fakes.proxy import Served, serving
from fakes.recorder import Recorder
from security.healthy import works_anew, works_on
from slowtok.proxy.server.origins import refusal_reason

TARGETS = ("/x", "/slowtok/status")
REFUSED = {
    "foreign name": ("Host: example.com",),
    "foreign name in capitals": ("Host: EXAMPLE.COM:4141",),
    "name that ends in ours": ("Host: notlocalhost:4141",),
    "name that begins with ours": ("Host: localhost.example.com",),
    "name of the local network": ("Host: evil.local:4141",),
    "address and a name": ("Host: 127.0.0.1.example.com",),
    "bracket and a name": ("Host: [::1].example.com",),
    "broken bracket": ("Host: [::1",),
    "user": ("Host: localhost@example.com",),
    "ours as a user": ("Host: example.com@localhost",),
    "path": ("Host: localhost/example.com",),
    "query": ("Host: localhost?example.com",),
    "two ports": ("Host: localhost:80:90",),
    "word as a port": ("Host: localhost:evil",),
    "backslash": ("Host: localhost\\example.com",),
    "list": ("Host: localhost, example.com",),
    "number for an address": ("Host: 2130706433",),
    "short address": ("Host: 127.1",),
    "hexadecimal address": ("Host: 0x7f.0.0.1",),
    "page": ("Origin: https://example.com",),
    "page in capitals": ("ORIGIN: HTTPS://EXAMPLE.COM",),
    "null": ("Origin: null",),
    "empty origin": ("Origin: ",),
    "page of another machine": ("Origin: http://192.168.1.7",),
    "page of this address, not port": ("Host: 192.168.1.7:4141", "Origin: http://192.168.1.7"),
    "rebound page": ("Host: example.com:4141", "Origin: http://example.com:4141"),
    "page of an address of ours and a name": ("Origin: http://127.0.0.1.example.com",),
    "page with a user": ("Origin: http://localhost@example.com",),
    "page with a path": ("Origin: http://localhost/https://example.com",),
    "two origins": ("Origin: http://localhost https://example.com",),
    "origin twice": ("Origin: https://example.com", "Origin: http://localhost"),
    "other scheme": ("Origin: ftp://localhost",),
    "no scheme": ("Origin: localhost",),
    "picture on a foreign page": ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    "foreign page without a mode": ("Sec-Fetch-Site: cross-site",),
    "site that nobody knows": ("Sec-Fetch-Site: somewhere",),
}
PASS = {
    "no browser": (),
    "address": ("Host: 127.0.0.1:4141",),
    "IPv6 address": ("Host: [::1]:4141",),
    "IPv6 address with a zone": ("Host: [fe80::1%25eth0]:4141",),
    "capitals and a dot": ("Host: LOCALHOST.:4141",),
    "empty port": ("Host: localhost:",),
    "container's name for this machine": ("Host: host.docker.internal:4141",),
    "page of this machine": ("Origin: http://LocalHost:5173",),
    "page at an IPv6 address": ("Origin: http://[::1]:3000",),
    "page through slowtok": ("Host: 192.168.1.7:4141", "Origin: http://192.168.1.7:4141"),
    "own page": ("Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors"),
    "typed address": ("Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"),
    "link on a foreign page": ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
async def test_foreign_is_refused(
    fields: tuple[str, ...], target: str, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    await client.ask("GET", target, *fields)
    head, body = await client.reply()

    assert head.status == 403
    assert b'"refused"' in body
    assert head.get("access-control-allow-origin") is None
    assert recorder.relayed == []
    await works_on(client)
    await works_anew(proxy)


@pytest.mark.parametrize(
    "target", [CHAT, "/slowtok/", "/slowtok/requests", "/slowtok/health", "/slowtok/events"]
)
async def test_foreign_is_refused_everywhere(target: str, proxy: Served) -> None:
    client = await proxy.connect()
    for field in ("Host: example.com", "Origin: null", "Sec-Fetch-Site: cross-site"):
        await client.ask("GET", target, field)
        assert (await client.reply())[0].status == 403
    await works_on(client)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fields", PASS.values(), ids=PASS)
async def test_own_passes(fields: tuple[str, ...], target: str, proxy: Served) -> None:
    client = await proxy.connect()
    await client.ask("GET", target, *fields)

    assert (await client.reply())[0].status == 200
    await works_on(client)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "http://example.com/x", 403),
        ("GET", "http://example.com/slowtok/status", 403),
        ("GET", "http://example.com@localhost/slowtok/status", 403),
        ("GET", "http://localhost@example.com/slowtok/status", 403),
        ("POST", "HTTP://EXAMPLE.COM/x", 403),
        ("GET", "http://localhost/slowtok/health", 200),
        ("GET", "http://[::1]:4141/x", 200),
        ("OPTIONS", "*", 200),
        ("OPTIONS", "http://example.com", 403),
        ("CONNECT", "example.com:443", 501),
        ("CONNECT", "localhost:4141", 501),
    ],
)
async def test_target_that_names_a_host_is_judged_like_the_field(
    method: str, target: str, status: int, proxy: Served
) -> None:
    client = await proxy.connect()
    await client.ask(method, target)

    assert (await client.reply())[0].status == status
    if method != "CONNECT":  # after that another protocol could have come
        await works_on(client)
    await works_anew(proxy)


async def test_options_of_a_foreign_page_for_the_whole_server_is_refused(proxy: Served) -> None:
    client = await proxy.connect()
    fields = ("Origin: https://example.com", "Access-Control-Request-Method: POST")
    await client.ask("OPTIONS", "*", *fields)

    assert (await client.reply())[0].status == 403
    await works_on(client)


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/json"],
)
@pytest.mark.parametrize("target", [CHAT, "/slowtok/health"])
async def test_form_of_a_foreign_page_that_shows_no_origin_is_refused(
    target: str, kind: str, proxy: Served, recorder: Recorder
) -> None:
    client = await proxy.connect()
    fields = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", f"Content-Type: {kind}")
    await client.ask("POST", target, *fields, body=b"{}")

    assert (await client.reply())[0].status == 403
    assert recorder.relayed == []
    await works_on(client)


async def test_simple_post_of_a_foreign_page_runs_no_prompt(
    proxy: Served, recorder: Recorder
) -> None:
    """A form needs no preflight: the prompt would run, though the page cannot read the answer."""
    client = await proxy.connect()
    fields = ("Content-Type: text/plain", "Origin: https://example.com")
    await client.ask("POST", CHAT, *fields, body=b'{"model":"small","messages":[]}')

    assert (await client.reply())[0].status == 403
    assert recorder.engine.count == 0
    await works_on(client)


async def test_allowed_origin_of_any_page_still_minds_the_host(
    recorder: Recorder, tmp_path: Path
) -> None:
    async with serving(tmp_path, recorder.url, allow_origin=["*"]) as proxy:
        client = await proxy.connect()
        await client.ask("GET", "/x", "Origin: https://example.com", "Host: example.com")
        assert (await client.reply())[0].status == 403
        await client.ask("GET", "/x", "Origin: https://example.com")
        assert (await client.reply())[0].status == 200


def test_names_of_the_local_network_count_where_it_may_come_in() -> None:
    rules = {"own_hosts": ("0.0.0.0",), "allowed": ()}

    assert refusal_reason("box.local:4141", None, **rules, is_local=False) is None  # type: ignore[arg-type]
    assert refusal_reason("box.local:4141", None, **rules, is_local=True)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="several workers share a port on Linux")
async def test_each_of_several_workers_has_the_same_guard(
    recorder: Recorder, tmp_path: Path
) -> None:
    env = {"SLOWTOK_WORKERS": "2", "SLOWTOK_API_KEY": "kiwi-7"}
    async with served(tmp_path, "--upstream", recorder.url, env=env) as running:
        port = int((await running.address()).rpartition(":")[2])
        seen = set()
        for _ in range(10):  # the system deals them out
            client = await connect(port)
            for field in ("Host: example.com", "Origin: null", "X-A: a", "x-api-key: kiwi-7"):
                await client.ask("GET", "/x", field)
                seen.add((field, (await client.reply())[0].status))
            client.close()
        assert await running.end() == 0

    assert seen == {
        ("Host: example.com", 403),
        ("Origin: null", 403),
        ("X-A: a", 401),
        ("x-api-key: kiwi-7", 200),
    }
