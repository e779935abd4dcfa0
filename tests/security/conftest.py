"""A real proxy in front of an engine that keeps every byte it gets, on the loop that serves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from fakes.loops import as_served
from fakes.proxy import Served, serving
from fakes.recorder import Recorder, recording


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return as_served()


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    async with recording() as found:
        yield found


@pytest.fixture
async def proxy(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, recorder.url) as served:
        yield served
