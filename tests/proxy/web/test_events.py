"""What is told at /slowtok/events, through the whole proxy."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import WAIT_S, chunk, reply, until
from slowtok.proxy.outputs import events

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = chunk(b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n')
LAST = chunk(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
STREAM = HEAD + TOKEN + LAST + b"0\r\n\r\n"

Event = tuple[str, dict[str, Any]]


class Listening:
    """One connection to /slowtok/events, read event by event."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._rest = b""

    async def text(self) -> bytes:
        """The next event or comment."""
        while b"\n\n" not in self._rest:
            self._rest += await self.client.chunk()
        text, self._rest = self._rest.split(b"\n\n", 1)
        return text

    async def event(self) -> Event:
        name, data = (await self.text()).split(b"\n")
        said: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
        return name.removeprefix(b"event: ").decode(), said

    async def find(self, name: str, **has: Any) -> dict[str, Any]:
        """The next event of a name with these values."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found, said = await self.event()
                if found == name and has.items() <= said.items():
                    return said


async def listen(proxy: Served) -> Listening:
    client = await proxy.connect()
    await client.ask("GET", "/slowtok/events")
    head = await client.head()
    assert (head.status, head.get("content-type")) == (200, events.HEADERS["Content-Type"])
    return Listening(client)


@pytest.fixture(autouse=True)
def in_quick_motion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LOOK_S", 0.005)
    monkeypatch.setattr(events, "TELL_S", 0.01)


async def test_a_request_is_told_step_by_step(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    listening = await listen(proxy)
    await client.chat()
    begin = await listening.find("begin")
    await listening.find("sent", id=begin["id"], model="small", phase="waiting")
    arrival = await engine.next()
    await arrival.send(HEAD)
    await listening.find("progress", id=begin["id"], phase="waiting")
    await arrival.send(TOKEN)
    first = await listening.find("first-token", id=begin["id"], tokens=1)
    await listening.find("progress", id=begin["id"], phase="decode")
    await arrival.send(LAST + b"0\r\n\r\n")
    await listening.find("end", id=begin["id"])
    record = await listening.find("record")

    assert first["ttft_s"] > 0
    assert (record["id"], record["ended"]) == (begin["id"], "stop")
    assert await proxy.record(begin["id"]) == record


async def test_what_runs_already_is_told_first(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    await client.chat()
    await engine.next()
    listening = await listen(proxy)
    name, said = await listening.event()

    assert (name, said["phase"], said["model"]) == ("progress", "waiting", "small")


async def test_the_machine_is_told_again_and_again(proxy: Served) -> None:
    listening = await listen(proxy)
    for _ in range(3):
        sample = await listening.find("sample")
        assert set(sample) == {"in_flight", "gpus", "host", "loop_lag"}


async def test_silence_has_a_heartbeat(proxy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.005)
    monkeypatch.setattr(events, "LOOK_S", 1000.0)
    listening = await listen(proxy)
    await listening.find("sample")

    assert await listening.text() == b": still here"


async def test_relayed_requests_are_told_by_their_record_alone(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    listening = await listen(proxy)
    engine.reply = reply(b"ok")
    await client.ask("GET", "/x")
    await client.reply()
    names = []
    while (event := await listening.event())[0] != "record":
        names.append(event[0])

    assert set(names) == {"sample"}
    assert event[1]["path"] == "/x"


async def test_listener_that_goes_is_noticed(proxy: Served) -> None:
    listening = await listen(proxy)
    other = await listen(proxy)
    assert proxy.proxy.events.listeners == 2
    listening.client.reset()
    await until(lambda: proxy.proxy.events.listeners == 1)
    other.client.close()
    await until(lambda: proxy.proxy.events.listeners == 0)

    def looks() -> bool:
        return any("Events._look" in repr(task) for task in asyncio.all_tasks())

    await until(lambda: not looks())


async def test_there_are_only_so_many_listeners(
    proxy: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.events, "_max_listeners", 1)
    first = await listen(proxy)
    await client.ask("GET", "/slowtok/events")
    head, body = await client.reply()

    assert (head.status, json.loads(body)["error"]["code"]) == (503, "overloaded")
    first.client.close()
    await until(lambda: proxy.proxy.events.listeners == 0)
    await listen(proxy)


async def test_listener_that_does_not_read_holds_nobody_up(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    deaf = await proxy.connect(receive_buffer_bytes=4096)
    await deaf.ask("GET", "/slowtok/events")
    await until(lambda: proxy.proxy.events.listeners == 1)
    for _ in range(2000):
        proxy.proxy.events._tell("record", {"filler": "x" * 5000})
    await asyncio.sleep(0)
    engine.reply = STREAM
    await client.chat()
    head, body = await client.reply()

    assert head.status == 200
    assert body.endswith(b"[DONE]\n\n")
    assert proxy.proxy.events.lost > 1000


async def test_one_that_breaks_is_counted_and_costs_only_itself(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, engine.url) as proxy:
        await listen(proxy)

        def broken(*_: object) -> Any:
            raise RuntimeError("broken")

        monkeypatch.setattr(events, "running_entry", broken)
        engine.reply = STREAM
        client = await proxy.connect()
        await client.chat()
        head, _ = await client.reply()

        assert head.status == 200
        failures = (await proxy.own("/slowtok/status"))["counts"]["failures"]
        assert failures["sink events"] == 3


async def test_stopping_lets_listeners_go(engine: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, engine.url) as proxy:
        listening = await listen(proxy)
        proxy.proxy.events.close()
        while await listening.client.chunk():
            pass
        client = await proxy.connect()
        await client.ask("GET", "/slowtok/events")
        head, _ = await client.reply()

    assert head.status == 503


async def test_stopping_does_not_wait_for_one_that_does_not_read(proxy: Served) -> None:
    deaf = await proxy.connect(receive_buffer_bytes=4096)
    await deaf.ask("GET", "/slowtok/events")
    await until(lambda: proxy.proxy.events.listeners == 1)
    [request] = proxy.proxy.events._listeners.values()
    transport = request.transport
    assert transport is not None
    while not transport.get_write_buffer_size():
        proxy.proxy.events._tell("record", {"filler": "x" * 50_000})
        await asyncio.sleep(0)
    proxy.proxy.events.close()

    await until(lambda: proxy.proxy.events.listeners == 0)
