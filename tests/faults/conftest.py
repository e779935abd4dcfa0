"""A proxy in front of an engine made of bytes, on the event loop that serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from fakes.client import Client
from fakes.client import connect as connect_to
from fakes.loops import as_served
from fakes.proxy import Served, serving
from fakes.upstream import Upstream, listening


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return as_served()


@pytest.fixture
async def engine() -> AsyncIterator[Upstream]:
    async with listening("llama-server") as upstream:
        yield upstream


@pytest.fixture
async def proxy(engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, engine.url) as served:
        yield served


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Awaitable[Client]]]:
    """Connects to a port; the connections end with the test."""
    made: list[Client] = []

    async def connected(port: int, *, receive_buffer_bytes: int = 0) -> Client:
        made.append(await connect_to(port, receive_buffer_bytes=receive_buffer_bytes))
        return made[-1]

    yield connected
    for client in made:
        client.close()
