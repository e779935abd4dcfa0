"""`--workers 2`, as a user runs it: whoever answers, all is seen at one place."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.bystander import STOP, pass_on
from fakes.client import Client, connect
from fakes.commands import run, served
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply
from slowtok.config.settings import SettingsError, load
from slowtok.proxy.cli.commands.serve import run_serve
from slowtok.proxy.outputs.case_file import parse_case

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")

STREAMS = 16  # all of them at one of two workers: once in 32,768 runs
WHOLE = (
    b'{"model":"small","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
    b'"timings":{"prompt_n":9,"prompt_ms":1.0,"predicted_n":2,"predicted_ms":1.0}}'
)
KEY = "open-sesame"
SHOWN = f"Authorization: Bearer {KEY}"


class Served:
    """Where two workers listen."""

    def __init__(self, port: int, stack: contextlib.ExitStack) -> None:
        self.port = port
        self._stack = stack

    async def connect(self) -> Client:
        client = await connect(self.port)
        self._stack.callback(client.close)
        return client

    async def own(self, page: str, *fields: str) -> Any:
        client = await self.connect()
        await client.ask("GET", f"/slowtok/{page}", *fields)
        head, body = await client.reply()
        assert head.status == 200, (page, body)
        return json.loads(body)


@asynccontextmanager
async def working(
    engine: Upstream, state_dir: Path, *options: str, **env: str
) -> AsyncIterator[Served]:
    arguments = ("--upstream", engine.url, "--workers", "2", *options)
    async with served(state_dir, *arguments, env=env) as running:
        port = int((await running.address()).rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            yield Served(port, stack)
        assert await running.end() == 0
        assert running.err == [""]
        assert "workers   2 take clients in\n" in running.out


async def finish(arrived: Arrival, client: Client) -> None:
    await arrived.send(chunk(STOP) + LAST_CHUNK)
    assert [await client.chunk(), await client.chunk()] == [STOP, b""]
    arrived.over.set()


async def events_until(client: Client, wanted: str, request_ids: set[str]) -> list[str]:
    """The names of the events up to the last one that is wanted of these requests."""
    names = []
    while request_ids:
        for event in (await client.chunk()).decode().split("\n\n"):
            name, _, data = event.removeprefix("event: ").partition("\ndata: ")
            names.append(name)
            if name == wanted:
                request_ids.discard(json.loads(data)["id"])
    return names


async def test_requests_of_both_workers_are_seen_at_one_place(
    engine: Upstream, tmp_path: Path
) -> None:
    cases = tmp_path / "cases"
    async with working(engine, tmp_path, "--record", str(cases)) as proxy:
        listening = await proxy.connect()
        await listening.ask("GET", "/slowtok/events")
        assert (await listening.head()).get("content-type") == "text/event-stream; charset=utf-8"
        streams, request_ids = [], []
        for _ in range(STREAMS):
            client = await proxy.connect()
            await client.chat()
            arrived = await engine.next()
            await arrived.send(chunked_head(SSE))
            request_ids.append((await client.head()).get("slowtok-id") or "")
            await pass_on(arrived, client, 0)
            streams.append((arrived, client))

        status = await proxy.own("status")
        while {one["phase"] for one in status["running"]} != {"decode"}:
            await asyncio.sleep(0.05)  # four times a second it is told how far they are
            status = await proxy.own("status")
        assert [w["in_flight"] > 0 for w in status["workers"]] == [True, True]
        assert sum(w["in_flight"] for w in status["workers"]) == STREAMS
        assert [w["held"]["now_bytes"] for w in status["workers"]] == [0, 0]
        assert all(w["held"]["most_bytes"] > 0 for w in status["workers"])
        held = [worker["held"]["now_bytes"] for worker in status["workers"]]
        assert status["overhead"]["held"]["now_bytes"] == sum(held)
        assert {one["id"] for one in status["running"]} == set(request_ids)
        assert {one["tokens"] for one in status["running"]} == {1}

        for stream in streams:
            await finish(*stream)
        for request_id in request_ids:
            assert (await proxy.own(f"requests/{request_id}"))["ended"] == "stop"
        names = await events_until(listening, "record", set(request_ids))
        assert names.count("begin") == names.count("end") == STREAMS
        status = await proxy.own("status")
        assert (status["counts"]["requests"], status["counts"]["failures"]) == (STREAMS, {})
        shown = run("status", "--listen", f"127.0.0.1:{proxy.port}").stdout
        assert sum(line.startswith("worker ") for line in shown.splitlines()) == 2
    parsed = [parse_case(path.read_bytes()).case for path in cases.iterdir()]
    neighbours = {c.timeline.request_id: c.neighbours for c in parsed}
    met = [neighbours[request_id].in_flight_at_send for request_id in request_ids]
    assert met == list(range(STREAMS))


async def test_replies_say_what_one_process_would_say(engine: Upstream, tmp_path: Path) -> None:
    async with working(engine, tmp_path) as proxy:
        heads = []
        for _ in range(8):  # at both workers
            client = await proxy.connect()
            await client.chat(stream=False)
            await (await engine.next()).answer(reply(WHOLE, JSON))
            head, body = await client.reply()
            assert body == WHOLE
            heads.append(head)
        previous = [head.get("slowtok-previous") for head in heads]
        said = [f'unknown;id="{head.get("slowtok-id")}"' for head in heads]
        assert previous == [None, *said[:-1]]
        assert {head.get("slowtok-decode") for head in heads} == {"2;ms=1.0;rate=1000.0"}

        for _ in range(4):
            client = await proxy.connect()
            await client.chat("slowtok-annotate: comment")
            arrived = await engine.next()
            await arrived.answer(reply(STOP + b"data: [DONE]\n\n", SSE))
            head, body = await client.reply()
            assert head.get("slowtok-previous") in (None, *said), "told in time, or an older one"
            record = json.loads(body.decode().partition(": slowtok ")[2].partition("\n")[0])
            assert (record["id"], record["ended"]) == (head.get("slowtok-id"), "stop")
            await proxy.own(f"requests/{record['id']}")  # it is there before the next one asks
            said.append(f'unknown;id="{record["id"]}"')
        assert (await proxy.own("status"))["counts"]["failures"] == {}


async def test_key_and_host_are_judged_by_each_worker(engine: Upstream, tmp_path: Path) -> None:
    async with working(engine, tmp_path, SLOWTOK_API_KEY=KEY) as proxy:
        for _ in range(8):
            for target in ("/v1/models", "/slowtok/status"):
                client = await proxy.connect()
                await client.ask("GET", target)
                assert (await client.reply())[0].status == 401
                await client.ask("GET", target, "Host: evil.example", SHOWN)
                assert (await client.reply())[0].status == 403
        assert (await proxy.own("status", SHOWN))["counts"]["requests"] == 0
        client = await proxy.connect()
        await client.ask("GET", "/slowtok/nothing", SHOWN)
        assert (await client.reply())[0].status == 404
        await client.send(b"GET /slowtok/health HTTP/1.0\r\n\r\n")  # as HAProxy asks
        assert (await client.reply())[0].status == 200
        stream = await begin_with_key(engine, proxy)
        await finish(*stream)


async def begin_with_key(engine: Upstream, proxy: Served) -> tuple[Arrival, Client]:
    client = await proxy.connect()
    await client.chat(SHOWN)
    arrived = await engine.next()
    assert arrived.head.get("authorization") is None  # it was meant for slowtok
    await arrived.send(chunked_head(SSE))
    await client.head()
    return arrived, client


def test_windows_has_one_process_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load({"workers": 2, "state_dir": str(tmp_path), "listen": "127.0.0.1:0"}, {})
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(SettingsError, match=r"^workers = 2 \(from arguments\): on Windows"):
        run_serve(settings)
