"""The model lists of engines: refreshed when a model is not known, and merged for clients."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.engines.probing.reply import ProbeReply, get
from slowtok.proxy.engines.routing import MODELS

_REFUSED = (401, 403)
_NAMES = ("id", "model", "name")  # of an entry, in OpenAI's and in Ollama's lists

Json = dict[str, Any]
Fields = Mapping[str, str]


class ModelLists:
    """Requests the engines' model lists, and stores the last ones in the engines."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._asking: list[asyncio.Task[Json | None]] = []
        self._asked_at_s = float("-inf")

    async def merged(self, engines: Sequence[Engine], path: str, keys: Fields) -> Json | None:
        """Return the merged list of all engines at `path`; None if none of them has one.

        An engine that does not answer counts with its last list. `keys` are the client's
        authentication fields, which are sent only to engines that require them.
        """
        lists = await asyncio.gather(*(self._ask(engine, path, keys) for engine in engines))
        found = [each for each in lists if each]
        return merge(found) if found else None

    async def look_for(
        self, engines: Sequence[Engine], model: str, keys: Fields, *, every_s: float, wait_s: float
    ) -> None:
        """Refresh the lists of the engines that answer, until one of them lists `model`.

        At most once in `every_s`; a request waits at most `wait_s`.
        """
        now_s = time.monotonic()
        if now_s - self._asked_at_s >= every_s:
            self._asked_at_s = now_s
            here = [engine for engine in engines if engine.identity is not None]
            self._asking = [asyncio.create_task(self._ask(e, MODELS, keys)) for e in here]
        until_s = now_s + wait_s
        while not any(engine.serves(model) for engine in engines):
            late = [task for task in self._asking if not task.done()]
            left_s = until_s - time.monotonic()
            if not late or left_s <= 0:
                return
            await asyncio.wait(late, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Cancel the requests in flight."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _ask(self, engine: Engine, path: str, keys: Fields) -> Json | None:
        reply = await get(self._session, engine.url, path)
        if reply is not None and reply.status in _REFUSED and keys:
            reply = await get(self._session, engine.url, path, headers=keys)
        if reply is None or reply.status >= 500:  # it is away, or not ready yet
            return engine.listed.get(path)
        listed = read_list(reply)
        if listed is not None:
            engine.note_list(path, listed)
        return listed


def read_list(reply: ProbeReply | None) -> Json | None:
    """Return the object in a reply; None if it is no model list."""
    body = None if reply is None else reply.json
    return body if isinstance(body, dict) and _entries(body) else None


def merge(lists: Sequence[Json]) -> Json:
    """Merge lists by their key, with entries unchanged; the first of equal entries is kept."""
    merged: Json = {}
    seen: dict[str, set[str]] = {}
    for each in lists:
        for key, value in each.items():
            if not isinstance(value, list):
                merged.setdefault(key, value)
                continue
            names = seen.setdefault(key, set())
            joined = merged.setdefault(key, [])
            for entry in value:
                name = _name(entry)
                if name is None or name not in names:
                    joined.append(entry)
                if name is not None:
                    names.add(name)
    return merged


def _entries(body: Mapping[str, Any]) -> Sequence[list[Any]]:
    return [value for key in ("data", "models") if isinstance(value := body.get(key), list)]


def _name(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return None
    names = (entry.get(key) for key in _NAMES)
    return next((name for name in names if isinstance(name, str)), None)
