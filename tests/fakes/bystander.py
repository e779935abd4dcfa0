"""What every fault is held to: a stream beside it stays whole, and nothing is left behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fakes.client import Client
from fakes.engine_pool import close_kept, in_use
from fakes.proxy import Served
from fakes.upstream import Arrival, Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply, until

PIECES = 20
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
WHOLE = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'


def piece(number: int) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"%d "}}]}\n\n' % number


@asynccontextmanager
async def unharmed(proxy: Served, engine: Upstream) -> AsyncIterator[None]:
    """Let a fault happen beside a stream: that one arrives whole, the next request works.

    Afterwards there are no more tasks, descriptors or connections than before. The block must
    close the connections that it opens.
    """
    await forget_idle(proxy, engine)
    before = census(proxy)
    other = await proxy.connect()
    arrived = await begin(engine, other)
    for number in range(PIECES):
        await pass_on(arrived, other, number)

    yield

    for number in range(PIECES, 2 * PIECES):
        await pass_on(arrived, other, number)
    await arrived.send(chunk(STOP) + LAST_CHUNK)
    assert [await other.chunk(), await other.chunk()] == [STOP, b""]
    arrived.over.set()
    await next_request_works(engine, other)
    other.close()
    await forget_idle(proxy, engine)
    await until(lambda: all(now <= then for now, then in zip(census(proxy), before, strict=True)))


async def begin(engine: Upstream, client: Client) -> Arrival:
    """Begin a stream; returns the engine's end of it."""
    await client.chat()
    arrived = await engine.next()
    await arrived.send(chunked_head(SSE))
    await client.head()
    return arrived


async def pass_on(arrived: Arrival, client: Client, number: int) -> None:
    await arrived.send(chunk(piece(number)))
    assert await client.chunk() == piece(number)


async def next_request_works(engine: Upstream, client: Client) -> None:
    await client.chat(stream=False)
    await (await engine.next()).answer(reply(WHOLE, JSON))
    head, body = await client.reply()
    assert (head.status, body) == (200, WHOLE)


def census(proxy: Served) -> tuple[int, ...]:
    """Count what could be left behind: tasks, descriptors, requests, memory, connections."""
    return (
        len(asyncio.all_tasks()),
        len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0,  # noqa: PTH208, PTH110
        proxy.proxy.observer.in_flight,
        len(proxy.proxy.observer._awaiting_sample),
        len(proxy.proxy.relay._tasks),
        proxy.proxy.relay.memory_budget.now_bytes,
        len(in_use(proxy.proxy.session)),
        len(proxy.server.connections),
    )


async def forget_idle(proxy: Served, engine: Upstream) -> None:
    """Close connections that are only kept for later; the engine closes its ends."""
    close_kept(proxy.proxy.session)
    await until(lambda: not proxy.proxy.observer._awaiting_sample)
