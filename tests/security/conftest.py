"""A real proxy in front of an engine that keeps every byte it gets, on the loop that serves."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from fakes.proxy import Served, serving
from fakes.recorder import Recorder, recording


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on uvloop, as `slowtok serve` does."""
    if sys.platform == "win32":
        return {"asyncio": asyncio.new_event_loop}
    import uvloop  # noqa: PLC0415 - not on Windows

    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    async with recording() as found:
        yield found


@pytest.fixture
async def proxy(recorder: Recorder, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, recorder.url) as served:
        yield served
