"""The engines, as a worker sees them: another process looks at them, and chooses among several."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slowtok.proxy.engines.routing import MODEL_LISTS
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.workers.channel import Channel
from slowtok.proxy.workers.wire import RemoteDirectory, RemoteEngine

CHOOSE_S = 2.0  # the observing process itself may wait a second for an engine; heuristic
KEEP_CHOSEN = 64
LIST_S = 30.0  # as long as it may wait for the engines' own lists


class RemoteEngines:
    """A `EngineDirectory`. Where one engine answers nobody is asked; else the observing process is.

    What it chose last stands where it does not answer.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.known = RemoteDirectory()  # until it is told
        self._chosen: BoundedMap[tuple[str | None, str], RemoteEngine] = BoundedMap(KEEP_CHOSEN)

    @property
    def several(self) -> bool:
        """Whether there are several engines to choose from."""
        return self.known.several

    @property
    def looked_at(self) -> str:
        """Where engines were looked for, for messages."""
        return self.known.looked_at

    async def choose(
        self, model: str | None, path: str, keys: Mapping[str, str]
    ) -> RemoteEngine | None:
        """Return the engine for a request, None where there is none."""
        if self.known.only is not None:
            return self.known.only
        before = self._chosen.get((model, path))
        if before is not None and self._channel.is_silent:
            return before
        asked = self._channel.ask("choose", model, path, dict(keys))
        chosen: RemoteEngine | None = await self._channel.answer(asked, CHOOSE_S)
        if chosen is None:
            return before
        self._chosen[model, path] = chosen
        return chosen

    async def merged_list(
        self, method: str, path: str, keys: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return the list of models of several engines; None where the request is for one."""
        if not self.several or method != "GET" or path not in MODEL_LISTS:
            return None
        asked = self._channel.ask("merged_list", method, path, dict(keys))
        merged: Mapping[str, Any] | None = await self._channel.answer(asked, LIST_S)
        return merged

    def lose(self, name: str) -> None:
        """Take note that an engine refused a request: the next one asks again."""
        self.known = replace(self.known, only=None)
        self._channel.tell("lose", name)
