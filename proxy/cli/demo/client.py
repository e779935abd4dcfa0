"""The demo's client: sends a request through the proxy as any client would, and gets its record."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from slowtok.proxy.cli.demo.children import DemoError
from slowtok.proxy.cli.demo.shots import Outcome, Shot

POLL_S = 0.05
RECORD_WAIT_S = 3.0
ERROR_CHARS = 300


class Client:
    """A client of one proxy."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, model: str) -> None:
        self._session = session
        self._base_url = base_url
        self._model = model

    async def send(self, shot: Shot, on_token: Callable[[int], None] = lambda _: None) -> Outcome:
        """Send a request, read its answer to the end, and return it with its record.

        Raises:
            DemoError: it was not answered, or no record came.
        """
        url = self._base_url + shot.path
        try:
            async with self._session.post(url, json={"model": self._model, **shot.body}) as reply:
                if not reply.ok:
                    said = (await reply.text())[:ERROR_CHARS]
                    raise DemoError(f"{shot.path} was answered with {reply.status}: {said}")
                events = 0
                async for piece in reply.content.iter_any():
                    events += piece.count(b"data: ")
                    on_token(events)
                record = await self._record(reply.headers["slowtok-id"])
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"{url}: {type(error).__name__} {error}") from error
        return Outcome(shot=shot, record=record)

    async def _record(self, request_id: str) -> dict[str, Any]:
        limit_at_s = time.monotonic() + RECORD_WAIT_S
        while time.monotonic() < limit_at_s:
            record = await self.ask(f"/slowtok/requests/{request_id}")
            if record is not None:
                return record
            await asyncio.sleep(POLL_S)
        raise DemoError(f"no record of request {request_id} came within {RECORD_WAIT_S:.0f} s")

    async def ask(self, path: str) -> dict[str, Any] | None:
        """Return what the proxy says about itself at `path`, None while it does not answer."""
        try:
            async with self._session.get(self._base_url + path) as reply:
                found = await reply.json() if reply.ok else None
        except aiohttp.ClientError:
            return None
        return found if isinstance(found, dict) else None
