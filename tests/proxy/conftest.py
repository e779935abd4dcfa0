"""A proxy in front of an engine made of bytes, on the event loop that serves."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import StreamReader

from fakes.client import Client
from fakes.loops import as_served
from fakes.proxy import Served, serving
from fakes.upstream import Upstream, listening

HERE = Path(__file__).parent
ON_UVLOOP = {"engines", "http", "observe", "relay", "runtime", "server", "upstream", "web"}
WITHOUT_FAST_PATH = "TEST_WITHOUT_FAST_PATH"  # see test_aiohttp_private.py

if WITHOUT_FAST_PATH in os.environ:
    del StreamReader.read_nowait  # as another aiohttp might: slowtok has to notice by itself


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The rooms that a request goes through are tested on uvloop, on which `slowtok serve` runs."""
    room = item.path.relative_to(HERE).parts[0]
    return as_served() if room in ON_UVLOOP else {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def kind() -> str:
    """The engine that is played; a test that needs another one parametrises this."""
    return "llama-server"


@pytest.fixture
async def engine(kind: str) -> AsyncIterator[Upstream]:
    async with listening(kind) as upstream:
        yield upstream


@pytest.fixture
async def proxy(engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, engine.url) as served:
        yield served


@pytest.fixture
async def client(proxy: Served) -> Client:
    return await proxy.connect()
