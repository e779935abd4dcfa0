"""The real application on a free port, in the test's own loop."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from fakes.client import Client, connect
from fakes.wire import until
from slowtok.config.settings import load
from slowtok.detectors.case.case import Case
from slowtok.proxy.app import Proxy, make_app
from slowtok.proxy.engines.probing.reply import TIMEOUT_S
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.server.edge import make_runner
from slowtok.proxy.server.listener import open_listener

SILENT = ("sh", "-c", "exec cat >/dev/null")  # a sampling process that never gives a sample
FIRST_LOOK_S = 5.0


class NoSamples(Sampler):
    """Samples nothing, and lets nobody wait for it."""

    async def start(self) -> None:
        """Start no process."""

    async def wait_for_fresh_sample(self, timeout_s: float = 0.1) -> bool:
        return False


class Served:
    """A proxy that listens; connections made here end with it."""

    def __init__(self, proxy: Proxy, port: int, cases: list[Case], server: web.Server) -> None:
        self.proxy = proxy
        self.server = server
        self.port = port
        self.clients: list[Client] = []
        self.cases = cases  # of finished requests

    async def connect(self, *, receive_buffer_bytes: int = 0) -> Client:
        client = await connect(self.port, receive_buffer_bytes=receive_buffer_bytes)
        self.clients.append(client)
        return client

    async def own(self, path: str) -> Any:
        """One of the proxy's own pages."""
        client = await self.connect()
        await client.ask("GET", path)
        head, body = await client.reply()
        client.close()
        assert head.status == 200, (path, body)
        return json.loads(body)

    async def record(self, request_id: str | None) -> dict[str, Any]:
        """The record of one request, as the API gives it."""
        found: dict[str, Any] = await self.own(f"/slowtok/requests/{request_id}")
        return found

    async def newest(self, count: int = 1) -> dict[str, Any]:
        """The newest record, once `count` requests have one."""
        await until(lambda: len(self.records()) >= count)
        return self.records()[0]

    def records(self) -> list[dict[str, Any]]:
        """All records that are kept, the newest first."""
        found: list[dict[str, Any]] = json.loads(self.proxy.records.newest_first())
        return found


async def _look_at_engines(proxy: Proxy) -> None:
    """Wait for the first look; one that a machine which stood still kept from its answer, twice."""
    began_s = time.monotonic()
    await proxy.engines.first_look(FIRST_LOOK_S)
    if time.monotonic() - began_s < TIMEOUT_S:
        return
    for engine in proxy.engines.all:
        engine.looked.clear()
        engine.wanted.set()
    await proxy.engines.first_look(FIRST_LOOK_S)


@asynccontextmanager
async def serving(
    state_dir: Path,
    *upstreams: str,
    sinks: Mapping[str, Sink] | None = None,
    change: Callable[[Proxy], None] | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve as `slowtok serve` does, without samples; `change` sees the proxy before it starts."""
    ram = {"bytes_per_s": 2e10, "measured_unix_s": time.time()}
    (state_dir / "ram.json").write_text(json.dumps(ram))
    given = {"upstream": list(upstreams), "state_dir": str(state_dir), **settings}
    cases: list[Case] = []
    keep: Sink = lambda case, diagnosis, record: cases.append(case)  # noqa: E731
    proxy = Proxy(load(given, {}), {"cases": keep, **(sinks or {})}, lambda event, **facts: None)
    proxy.sampler = NoSamples()
    if change is not None:
        change(proxy)
    listener = open_listener("127.0.0.1", 0, proxy.settings.client_timeout_s)
    port = int(listener.getsockname()[1])
    runner = make_runner(make_app(proxy, own_port=lambda: port), proxy.settings.max_head_bytes)
    await runner.setup()
    assert runner.server is not None
    served = Served(proxy, port, cases, runner.server)
    try:
        await web.SockSite(runner, listener).start()
        await _look_at_engines(proxy)
        yield served
    finally:
        for client in served.clients:
            client.close()
        await runner.cleanup()
