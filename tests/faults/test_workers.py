"""Several workers: one that dies, or an observing process that is stopped, harms nobody else.

The first worker is the process that was started: with it all ends, and with the observing process.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fakes.bystander import STOP, begin, next_request_works, pass_on
from fakes.client import Client
from fakes.commands import Running, served
from fakes.upstream import Arrival, Upstream
from fakes.wire import LAST_CHUNK, chunk, until
from slowtok.proxy.server.connection_limit import MAX_REFUSALS, OWN_DESCRIPTORS
from slowtok.proxy.server.listener import open_listeners

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")

Connect = Callable[..., Awaitable[Client]]
Streams = list[tuple[Arrival, Client]]

DESCRIPTORS = 160
LIMITED = ("sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
STREAMS = 16  # all of them at one of two workers: once in 32,768 runs


@asynccontextmanager
async def working(
    engine: Upstream, state_dir: Path, within: Sequence[str] = ()
) -> AsyncIterator[tuple[Running, int]]:
    """Two workers; gives the port at which they take clients in."""
    arguments = ("--upstream", engine.url, "--workers", "2")
    async with served(state_dir, *arguments, within=within) as running:
        yield running, int((await running.address()).rpartition(":")[2])


async def own(connect: Connect, port: int, page: str) -> Any:
    client = await connect(port)
    await client.ask("GET", f"/slowtok/{page}")
    head, body = await client.reply()
    client.close()
    assert head.status == 200, (page, body)
    return json.loads(body)


async def opened(engine: Upstream, connect: Connect, port: int) -> Streams:
    """Streams at both workers."""
    streams = []
    for _ in range(STREAMS):
        client = await connect(port)
        streams.append((await begin(engine, client), client))
    return streams


async def finish(streams: Streams) -> None:
    """Let streams go on to their end."""
    for arrived, client in streams:
        await pass_on(arrived, client, 1)
        await arrived.send(chunk(STOP) + LAST_CHUNK)
        assert [await client.chunk(), await client.chunk()] == [STOP, b""]
        arrived.over.set()


async def broken_off(streams: Streams) -> Streams:
    """Those whose engine is left: their worker is gone."""
    left = []
    for arrived, client in streams:
        await arrived.send(chunk(b": still there\n\n"))
        try:
            async with asyncio.timeout(5):
                await client.chunk()
        except (ConnectionError, asyncio.IncompleteReadError):
            left.append((arrived, client))
    return left


def entries(state_dir: Path, event: str) -> list[dict[str, Any]]:
    lines = (state_dir / "log.jsonl").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["event"] == event]


async def test_worker_that_is_killed(engine: Upstream, tmp_path: Path, connect: Connect) -> None:
    async with working(engine, tmp_path) as (running, port):
        streams = await opened(engine, connect, port)
        before = (await own(connect, port, "status"))["workers"]
        assert [worker["in_flight"] > 0 for worker in before] == [True, True]
        os.kill(before[1]["pid"], signal.SIGKILL)

        lost = await broken_off(streams)
        assert len(lost) == before[1]["in_flight"]
        for arrived, _ in lost:
            await arrived.gone()
        await finish([stream for stream in streams if stream not in lost])

        for _ in range(STREAMS):  # some of them at the new one, which the port waits for
            await next_request_works(engine, await connect(port))
        status = await own(connect, port, "status")
        assert [worker["restarts"] for worker in status["workers"]] == [0, 1]
        assert status["counts"]["in_flight"] == 0
        assert await running.end() == 0
        assert running.err == [""]
    (died,) = entries(tmp_path, "worker-died")
    assert (died["code"], died["requests"]) == (-signal.SIGKILL, len(lost))
    endings = [entry["ended"] for entry in entries(tmp_path, "request")]
    assert endings.count("proxy-stopped") == len(lost)
    assert endings.count("stop") == 2 * STREAMS - len(lost)


async def test_worker_that_is_killed_while_the_proxy_stops(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with working(engine, tmp_path) as (running, port):
        streams = await opened(engine, connect, port)
        workers = (await own(connect, port, "status"))["workers"]
        running.process.send_signal(signal.SIGTERM)
        while not (await running.line()).startswith("stopping  "):
            pass
        os.kill(workers[1]["pid"], signal.SIGKILL)

        lost = await broken_off(streams)
        await finish([stream for stream in streams if stream not in lost])

        assert await running.ended() == 0
        assert running.err == [""]
    endings = [entry["ended"] for entry in entries(tmp_path, "request")]
    assert endings.count("proxy-stopped") == len(lost) == workers[1]["in_flight"]
    assert endings.count("stop") == STREAMS - len(lost)
    (cut_off,) = entries(tmp_path, "cut-off")
    assert cut_off["requests"] == len(lost)


async def test_workers_that_die_as_they_start(engine: Upstream, tmp_path: Path) -> None:
    """They are started again and again, ever more seldom; the proxy can be stopped meanwhile."""
    broken = (
        "import sys\n"
        'if "slowtok.proxy.workers" in sys.orig_argv and len(sys.orig_argv) < 7:\n'
        '    sys.exit("broken")\n'
    )
    (tmp_path / "sitecustomize.py").write_text(broken)
    arguments = ("--upstream", engine.url, "--workers", "2")
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), *own_path()))}
    async with served(tmp_path, *arguments, env=env) as running:
        await running.address()
        await until(lambda: len(entries(tmp_path, "worker-died")) >= 2)

        assert await running.end() == 0

    assert "workers   1 of 2 take clients in\n" in running.out
    died = entries(tmp_path, "worker-died")
    assert {entry["requests"] for entry in died} == {0}


def own_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


async def test_first_worker_that_dies_as_it_starts(engine: Upstream, tmp_path: Path) -> None:
    broken = 'import sys\nif "slowtok.proxy.workers" in sys.orig_argv: sys.exit("broken")\n'
    (tmp_path / "sitecustomize.py").write_text(broken)
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), *own_path()))}
    async with served(tmp_path, "--upstream", engine.url, env=env) as running:
        assert await running.ended() == 1

    assert running.err[0].endswith("SystemExit: broken\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they are one socket")
def test_second_proxy_does_not_get_half_of_the_connections() -> None:
    """Not even one that is started before the workers of the first one are ready."""
    ports = open_listeners("127.0.0.1", 0, 600, 2)
    try:
        with pytest.raises(OSError, match="in use"):
            open_listeners("127.0.0.1", int(ports[0].getsockname()[1]), 600, 2)
    finally:
        for port in ports:
            port.close()


def observing(running: Running) -> psutil.Process:
    """The process that observes: the only child of the one that was started."""
    (found,) = psutil.Process(running.process.pid).children()
    return found


async def test_first_worker_that_is_killed_ends_all_in_order(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with working(engine, tmp_path) as (running, port):
        streams = await opened(engine, connect, port)
        family = psutil.Process(running.process.pid).children(recursive=True)
        running.process.kill()

        lost = await broken_off(streams)
        await finish([stream for stream in streams if stream not in lost])
        await until(lambda: not any(one.is_running() for one in family))
        with pytest.raises(ConnectionError):
            await connect(port)
    (died,) = entries(tmp_path, "worker-died")
    assert died["requests"] == len(lost)
    endings = [entry["ended"] for entry in entries(tmp_path, "request")]
    assert endings.count("proxy-stopped") == len(lost)
    assert endings.count("stop") == STREAMS - len(lost)


async def test_observing_process_that_is_killed_costs_no_stream(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with working(engine, tmp_path) as (running, port):
        streams = await opened(engine, connect, port)
        workers = [w["pid"] for w in (await own(connect, port, "status"))["workers"]]
        observing(running).kill()

        await finish(streams)  # what is on its way may end

        assert await running.ended() == 1
        assert running.err == ["slowtok: the observing process was ended by signal 9\n"]
        await until(lambda: not any(psutil.pid_exists(pid) for pid in workers))
        with pytest.raises(ConnectionError):
            await connect(port)


async def test_observing_process_that_is_stopped_costs_only_what_it_would_have_told(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with working(engine, tmp_path) as (running, port):
        client = await connect(port)
        await next_request_works(engine, client)
        observing(running).suspend()
        try:
            await next_request_works(engine, client)
            await finish([(await begin(engine, client), client)])
        finally:
            observing(running).resume()

        await next_request_works(engine, client)
        assert await running.end() == 0
    assert [entry["ended"] for entry in entries(tmp_path, "request")] == ["stop"] * 4


async def test_second_signal_ends_it_though_the_observing_process_is_stopped(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with served(tmp_path, "--upstream", engine.url) as running:
        port = int((await running.address()).rpartition(":")[2])
        arrived = await begin(engine, client := await connect(port))
        observing(running).suspend()
        try:
            running.process.send_signal(signal.SIGTERM)
            await pass_on(arrived, client, 1)
            running.process.send_signal(signal.SIGTERM)

            assert LAST_CHUNK not in await client.rest()
        finally:
            observing(running).resume()
        assert await running.ended() == 0


async def test_ctrl_c_is_for_the_first_process(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    async with working(engine, tmp_path) as (running, port):
        workers = [w["pid"] for w in (await own(connect, port, "status"))["workers"]]
        assert workers[0] == running.process.pid

        assert await running.end(signal.SIGINT, group=True) == 0

        assert running.err == [""]
        assert not any(psutil.pid_exists(pid) for pid in workers)
    assert entries(tmp_path, "worker-died") == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors, and so connections")
async def test_each_worker_takes_no_more_than_it_can_serve(
    engine: Upstream, tmp_path: Path, connect: Connect
) -> None:
    most = (DESCRIPTORS - OWN_DESCRIPTORS - MAX_REFUSALS) // 2
    async with working(engine, tmp_path, within=LIMITED) as (running, port):
        statuses, kept = [], []
        for _ in range(3 * most):
            client = await connect(port)
            await client.ask("GET", "/slowtok/health")
            statuses.append((await client.reply())[0].status)
            if statuses[-1] == 200:
                kept.append(client)
            else:
                client.close()
        assert len(kept) <= 2 * most
        assert set(statuses) == {200, 503}

        refused = 0
        while refused < statuses.count(503):  # it is told four times a second
            await kept[0].ask("GET", "/slowtok/status")
            refused = json.loads((await kept[0].reply())[1])["counts"]["connections_refused"]
        assert refused == statuses.count(503)
        await next_request_works(engine, kept[-1])
        assert await running.end() == 0
        assert running.err == [""]
