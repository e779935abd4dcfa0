"""Where a request goes is settled by the configuration, never by the request."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fakes.client import CHAT
from fakes.proxy import Served
from fakes.recorder import Recorder
from security.healthy import works_anew, works_on


@pytest.fixture
async def elsewhere() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A place that nobody configured: its address, and whatever somebody says to it."""
    said: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read(100))
        writer.transport.abort()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", said
    server.close()


TARGETS = {
    "other authority": ("http://{there}/x", "/x"),
    "other authority with a user": ("http://localhost@{there}/x", None),
    "scheme in capitals": ("HTTP://{there}/x", "/x"),
    "https": ("https://{there}/x", "/x"),
    "empty authority": ("http:///x", None),
    "two slashes": ("//{there}/x", "//{there}/x"),
    "three slashes": ("///{there}/x", "///{there}/x"),
    "backslash": ("/\\{there}/x", "/\\{there}/x"),
    "at": ("/@{there}/x", "/@{there}/x"),
    "authority alone": ("@{there}/x", None),
    "port alone": (":80@{there}/x", None),
    "dots": ("/..//{there}/../x", "/..//{there}/../x"),
    "encoded slashes": ("/%2f%2f{there}%2fx", "/%2f%2f{there}%2fx"),
    "encoded dots": ("/%2e%2e/x", "/%2e%2e/x"),
    "semicolon": ("/;@{there}", "/;@{there}"),
    "query": ("/x?http://{there}/", "/x?http://{there}/"),
    "fragment": ("/x#@{there}/", None),
    "URL as a path": ("/http://{there}/x", "/http://{there}/x"),
}


@pytest.mark.parametrize(("target", "arrives"), TARGETS.values(), ids=TARGETS)
async def test_target_does_not_choose(
    target: str,
    arrives: str | None,
    elsewhere: tuple[str, list[bytes]],
    proxy: Served,
    recorder: Recorder,
) -> None:
    there, said = elsewhere
    client = await proxy.connect()
    await client.ask("GET", target.format(there=there))
    head, _ = await client.reply()

    if head.status == 200:
        arrived = await recorder.engine.next()
        assert arrived.head.every("host") == [recorder.url.removeprefix("http://")]
        assert arrives is None or arrived.head.target == arrives.format(there=there)
        await works_on(client)
    else:
        assert head.status in (400, 403)
        assert recorder.relayed == []
    await works_anew(proxy)
    assert said == []


FIELDS = (
    "X-Forwarded-Host: {there}",
    "X-Forwarded-For: 127.0.0.1, {there}",
    "X-Forwarded-Proto: https",
    "Forwarded: host={there};proto=https",
    "X-Host: {there}",
    "X-Original-URL: http://{there}/",
    "X-Rewrite-URL: /slowtok/status",
    "X-Real-IP: 127.0.0.1",
    "Location: http://{there}/",
    "Referer: http://{there}/",
    "Destination: http://{there}/",
    "Via: 1.1 {there}",
    "slowtok-upstream: http://{there}",
)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("target", ["/x", CHAT])
async def test_field_does_not_choose(
    target: str,
    field: str,
    elsewhere: tuple[str, list[bytes]],
    proxy: Served,
    recorder: Recorder,
) -> None:
    there, said = elsewhere
    client = await proxy.connect()
    await client.ask("POST", target, field.format(there=there), body=b'{"stream":false}')
    head, _ = await client.reply()

    arrived = await recorder.engine.next()
    assert head.status == 200
    assert arrived.head.target == target
    assert arrived.head.every("host") == [recorder.url.removeprefix("http://")]
    await works_on(client)
    await works_anew(proxy)
    assert said == []


@pytest.mark.parametrize("key", ["base_url", "api_base", "upstream", "host", "url", "model"])
async def test_body_does_not_choose(
    key: str, elsewhere: tuple[str, list[bytes]], proxy: Served, recorder: Recorder
) -> None:
    there, said = elsewhere
    client = await proxy.connect()
    await client.chat(stream=False, **{"model": "small", key: f"http://{there}/"})
    head, _ = await client.reply()

    assert head.status == 200
    assert recorder.engine.count == 1
    await works_anew(proxy)
    assert said == []
