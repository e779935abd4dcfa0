"""Engines that are looked at, without a proxy around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.proxy import SILENT
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.upstream.client import make_session

Told = list[tuple[str, dict[str, Any]]]


@asynccontextmanager
async def looking(tmp_path: Path, *urls: str, told: Told | None = None) -> AsyncIterator[Engines]:
    """Engines that are looked at, with a sampler that was never started."""
    heard: Told = [] if told is None else told
    async with make_session(1.0) as session:
        engines = Engines(
            session,
            [(None, url) for url in urls],
            sampler=Sampler(command=SILENT),
            cache_dir=tmp_path,
            own_port=1,
            log_event=lambda event, **facts: heard.append((event, facts)),
        )
        engines.start(lambda _name: False)
        await engines.first_look(10.0)
        try:
            yield engines
        finally:
            await engines.stop()
