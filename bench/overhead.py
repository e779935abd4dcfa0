"""What the proxy costs: direct, a naive relay and slowtok, interleaved in one run, as ratios.

    python bench/overhead.py [--rounds N] [--streams N] [--rate TOKENS_PER_S]

A mock engine (own process) sends server-sent events at a fixed pace, each with its send time; the
client (this process) reads them and takes the one-way latency of each event. The naive relay is
aiohttp's server and client with nothing looked at: the least that a Python proxy can cost. Ratios
of medians over the rounds are what counts; microseconds depend on the machine.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import psutil
import uvloop
from aiohttp import web

EVENT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"word"}}],'
    b'"created":1795149224,"id":"chatcmpl-gZlHWpa4TbT1l20XRMkZzbVr61TYxub1","model":"mock",'
    b'"system_fingerprint":"b0-mock","object":"chat.completion.chunk","at":%.7f}\n\n'
)
WHOLE = (
    b'{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"hi"}}],'
    b'"model":"mock","object":"chat.completion","usage":{"completion_tokens":2,"prompt_tokens":9},'
    b'"timings":{"cache_n":0,"prompt_n":9,"prompt_ms":1.0,"predicted_n":2,"predicted_ms":1.0}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One round of one way: latency per event in seconds, and CPU of the relay per event."""

    p50_s: float
    p99_s: float
    ttft_s: float
    cpu_per_event_s: float | None
    requests_per_s: float


def run_mock(port: int) -> None:
    """Serve the mock engine: `n` events every `gap_ms`, or one whole reply."""

    async def chat(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if not asked.get("stream"):
            return web.Response(body=WHOLE, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        for _ in range(int(asked["n_events"])):
            await response.write(EVENT % time.monotonic())
            due_s += asked["gap_ms"] / 1000
            await asyncio.sleep(max(due_s - loop.time(), 0))
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def run_naive(port: int, upstream_port: int) -> None:
    """Serve the naive relay."""

    async def relay(request: web.Request) -> web.StreamResponse:
        url = f"http://127.0.0.1:{upstream_port}{request.rel_url}"
        async with request.app["session"].post(url, data=await request.read()) as reply:
            response = web.StreamResponse(headers={"Content-Type": reply.content_type})
            await response.prepare(request)
            async for chunk in reply.content.iter_any():
                await response.write(chunk)
            return response

    async def life(app: web.Application):  # type: ignore[no-untyped-def]
        app["session"] = aiohttp.ClientSession()
        yield
        await app["session"].close()

    app = web.Application()
    app.cleanup_ctx.append(life)
    app.router.add_post("/v1/chat/completions", relay)
    uvloop.install()
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


async def measure(port: int, pid: int | None, streams: int, rate: float, events: int) -> Figures:
    """Run `streams` paced streams, then whole replies one after the other."""
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    asked = {"stream": True, "model": "mock", "n_events": events, "gap_ms": 1000 * streams / rate}
    late: list[float] = []
    first: list[float] = []

    async def one(session: aiohttp.ClientSession, begin_s: float) -> None:
        await asyncio.sleep(begin_s)
        sent_s = time.monotonic()
        async with session.post(url, json=asked) as reply:
            async for line in reply.content:
                now_s = time.monotonic()
                at = line.rfind(b'"at":')
                if at < 0:
                    continue
                if sent_s:
                    first.append(now_s - sent_s)
                    sent_s = 0.0
                late.append(now_s - float(line[at + 5 : line.rindex(b"}")]))

    process = psutil.Process(pid) if pid else None
    before = _cpu_s(process)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        spread_s = streams / rate
        await asyncio.gather(*(one(session, i * spread_s / streams) for i in range(streams)))
        cpu_s = _cpu_s(process) - before
        begin_s = time.monotonic()
        for _ in range(200):
            async with session.post(url, json={"model": "mock", "messages": []}) as reply:
                await reply.read()
        whole_s = time.monotonic() - begin_s
    late.sort()
    return Figures(
        p50_s=late[len(late) // 2],
        p99_s=late[int(len(late) * 0.99)],
        ttft_s=statistics.median(first),
        cpu_per_event_s=cpu_s / len(late) if process else None,
        requests_per_s=200 / whole_s,
    )


def _cpu_s(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


@contextlib.contextmanager
def ways() -> Iterator[dict[str, tuple[int, int | None]]]:
    """Start mock, naive relay and slowtok; yield port and process id of each way."""
    mock, naive, ours = _free_port(), _free_port(), _free_port()
    children = [
        multiprocessing.Process(target=run_mock, args=(mock,), daemon=True),
        multiprocessing.Process(target=run_naive, args=(naive, mock), daemon=True),
    ]
    for child in children:
        child.start()
    _wait_for(mock)
    with tempfile.TemporaryDirectory() as state:
        command = ["serve", "--upstream", f"http://127.0.0.1:{mock}", "--state-dir", state]
        slowtok = subprocess.Popen(
            [sys.executable, "-m", "slowtok.proxy", *command, "--listen", f"127.0.0.1:{ours}"],
            stdout=subprocess.DEVNULL,
        )
        try:
            for port in (naive, ours):
                _wait_for(port)
            time.sleep(3)  # the RAM measurement at the first start takes a second
            yield {
                "direct": (mock, None),
                "naive": (naive, children[1].pid),
                "slowtok": (ours, slowtok.pid),
            }
        finally:
            slowtok.terminate()
            slowtok.wait(10)
            for child in children:
                child.terminate()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1600.0, help="events per second, all streams")
    parser.add_argument("--events", type=int, default=200, help="events per stream")
    asked = parser.parse_args()
    found: dict[str, list[Figures]] = {}
    with ways() as all_ways:
        for _ in range(asked.rounds):
            for name, (port, pid) in all_ways.items():
                figures = asyncio.run(measure(port, pid, asked.streams, asked.rate, asked.events))
                found.setdefault(name, []).append(figures)
    _print(found, f"{asked.streams} streams, {asked.rate:.0f} events/s, {os.cpu_count()} cores")


def _print(found: dict[str, list[Figures]], title: str) -> None:
    print(f"{title}, medians of {len(found['direct'])} rounds")
    print(f"{'':9}{'p50 us':>9}{'p99 us':>9}{'TTFT us':>9}{'CPU us/event':>14}{'whole/s':>9}")
    medians = {name: _median(rounds) for name, rounds in found.items()}
    for name, m in medians.items():
        cpu = f"{m.cpu_per_event_s * 1e6:14.1f}" if m.cpu_per_event_s is not None else f"{'-':>14}"
        print(
            f"{name:9}{m.p50_s * 1e6:9.0f}{m.p99_s * 1e6:9.0f}{m.ttft_s * 1e6:9.0f}{cpu}"
            f"{m.requests_per_s:9.0f}"
        )
    ours, naive = medians["slowtok"], medians["naive"]
    cpu_ratio = (ours.cpu_per_event_s or 0) / (naive.cpu_per_event_s or 1)
    print(
        f"slowtok / naive: p50 {ours.p50_s / naive.p50_s:.2f}, p99 {ours.p99_s / naive.p99_s:.2f}, "
        f"CPU {cpu_ratio:.2f}, whole replies {ours.requests_per_s / naive.requests_per_s:.2f}"
    )


def _median(rounds: list[Figures]) -> Figures:
    cpu = [r.cpu_per_event_s for r in rounds if r.cpu_per_event_s is not None]
    return Figures(
        p50_s=statistics.median(r.p50_s for r in rounds),
        p99_s=statistics.median(r.p99_s for r in rounds),
        ttft_s=statistics.median(r.ttft_s for r in rounds),
        cpu_per_event_s=statistics.median(cpu) if cpu else None,
        requests_per_s=statistics.median(r.requests_per_s for r in rounds),
    )


if __name__ == "__main__":
    main()
