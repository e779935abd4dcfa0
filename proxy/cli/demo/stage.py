"""Puts the demo's parts up: engine, proxy in front of it, client; and takes them down again."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from slowtok.proxy.cli.demo.children import (
    DemoError,
    cores,
    free_port,
    how_it_ended,
    is_free,
    last_words,
    run_engine,
    run_proxy,
)
from slowtok.proxy.cli.demo.client import Client
from slowtok.proxy.cli.demo.report import Show
from slowtok.proxy.cli.render.units import MIB
from slowtok.proxy.cli.running_proxy import holder_of

SLOTS = 2
CONTEXT_TOKENS = 12_288  # half of it for each slot
MAX_THREADS = 16  # more bring nothing to a small model

ENGINE_LIMIT_S = 120.0  # a large model of the user's own
PROXY_LIMIT_S = 10.0
READY_LIMIT_S = 35.0  # the proxy waits up to 30 s for idle cores to measure the RAM's bandwidth
POLL_S = 0.1
HOST, USUAL_PORT = "127.0.0.1", 4141
USUAL_LISTEN = f"{HOST}:{USUAL_PORT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStage:
    """A client of the proxy, and the processes without which the demo is over, by name."""

    client: Client
    parts: Mapping[str, asyncio.subprocess.Process]

    async def until_one_ends(self) -> str:
        """Wait until one of the processes ends, and say which one and how."""
        ends = {asyncio.ensure_future(part.wait()): name for name, part in self.parts.items()}
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        ended = next(iter(done))
        return f"{ends[ended]} {how_it_ended(ended.result())}"


@asynccontextmanager
async def set_stage(
    show: Show, *, listen: str, state_dir: Path, ram_bandwidth: str | None, logs: Path
) -> AsyncIterator[DemoStage]:
    """Start the engine and the proxy, and yield them with a client of the proxy.

    Raises:
        DemoError: one of them did not start.
    """
    began_at_s = time.monotonic()
    async with AsyncExitStack() as stack:
        with show.waiting("starting llama-server"):
            engine_url, engine = await stack.enter_async_context(_engine(show, logs))
        took_s = time.monotonic() - began_at_s
        size = f"{show.model.stat().st_size / MIB:.0f} MiB"
        show.say(f"llama-server at {engine_url} in {took_s:.1f} s: {show.model_name}, {size}")
        log = logs / "proxy.log"
        with show.waiting("starting slowtok"):
            proxy = await stack.enter_async_context(
                run_proxy(
                    engine_url,
                    listen=listen,
                    state_dir=state_dir,
                    ram_bandwidth=ram_bandwidth,
                    log=log,
                )
            )
            session = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
            )
            client = Client(session, f"http://{listen}", show.model_name)
            await _until_healthy(client, proxy, log)
        show.say(f"slowtok serve --upstream {engine_url} at http://{listen}")
        show.say(f"the live page: http://{listen}/slowtok/")
        with show.waiting("slowtok measures the RAM's bandwidth (once, when the cores are idle)"):
            status = await _until_ready(client)
        show.say(_readiness(status))
        yield DemoStage(client=client, parts={"llama-server": engine, "slowtok": proxy})


def _engine(show: Show, logs: Path) -> Any:
    physical = psutil.cpu_count(logical=False) or cores()
    return run_engine(
        show.model,
        alias=show.model_name,
        threads=min(physical, cores(), MAX_THREADS),
        context=CONTEXT_TOKENS,
        slots=SLOTS,
        log=logs / "engine.log",
        limit_s=ENGINE_LIMIT_S,
    )


async def _until_healthy(client: Client, proxy: asyncio.subprocess.Process, log: Path) -> None:
    limit_at_s = time.monotonic() + PROXY_LIMIT_S
    while await client.ask("/slowtok/health") is None:
        if proxy.returncode is not None or time.monotonic() > limit_at_s:
            raise DemoError(f"slowtok serve did not start: {await last_words(proxy, log)}")
        await asyncio.sleep(POLL_S)


async def _until_ready(client: Client) -> dict[str, Any]:
    """Wait until the proxy knows what it needs to judge; without it, requests come out unknown."""
    limit_at_s = time.monotonic() + READY_LIMIT_S
    while True:
        status = await client.ask("/slowtok/status") or {}
        engines, bandwidth = status.get("engines") or [{}], _bandwidth(status)
        if (bandwidth and engines[0].get("answers")) or time.monotonic() > limit_at_s:
            return status
        await asyncio.sleep(POLL_S)


def _bandwidth(status: dict[str, Any]) -> float | None:
    found = status.get("machine", {}).get("ram_bandwidth_bytes_per_s")
    return float(found) if found else None


def _readiness(status: dict[str, Any]) -> str:
    bandwidth = _bandwidth(status)
    if bandwidth is None:
        return "RAM bandwidth not known: the cores are never idle, so there is no expectation"
    return f"RAM bandwidth {bandwidth / 1e9:.0f} GB/s: the expected rates follow from it"


def pick_listen(*, usual: bool) -> str:
    """Return HOST:PORT for the proxy: the usual one where wanted and free, else any free one."""
    if usual and is_free(HOST, USUAL_PORT):
        return USUAL_LISTEN
    return f"{HOST}:{free_port(HOST)}"


def why_not_there(listen: str) -> str | None:
    """Return why the proxy cannot listen at HOST:PORT; None where the port is free."""
    host, _, port = listen.rpartition(":")
    if is_free(host.strip("[]"), int(port)):
        return None
    holder = holder_of(int(port))
    by = f"{holder} is there" if holder else "is something else there?"
    return f"cannot be used: {by}; --listen HOST:PORT takes another port"


def why_elsewhere() -> str:
    """Return who has the usual port, so that the demo takes another one."""
    return f"{USUAL_LISTEN} is taken by {holder_of(USUAL_PORT) or 'somebody else'}: another port"
