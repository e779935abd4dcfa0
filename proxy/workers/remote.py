"""A worker's stand-ins for the observer and the engines: each call is a message to their process.

The observing process makes the diagnoses, and chooses where there are several engines. What a
client waits for is asked, and waited for only so long: without an answer the reply goes out without
it. Tokens are counted here; four times a second the worker tells how far each request is.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from slowtok.proxy.engines.routing import MODEL_LISTS
from slowtok.proxy.observe.pending_prompts import PendingPrompts
from slowtok.proxy.outputs.headers import MAX_MODELS_KEPT, server_timing
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.workers.channel import Channel
from slowtok.proxy.workers.wire import Progress, RemoteDirectory, RemoteEngine, packed, progress_of

# How long each thing may be waited for; all heuristic.

HEAD_S = 0.05  # that the head of a stream may wait which is alone; asked long before, it is there
WHOLE_S = 0.5  # that a whole reply may wait for its diagnosis
RECORD_S = 0.5  # that the end of a stream may wait for its record

CHOOSE_S = 2.0  # the observing process itself may wait a second for an engine
KEEP_CHOSEN = 64
LIST_S = 30.0  # as long as it may wait for the engines' own lists


class RemoteObserver:
    """The `RequestObserver` of one worker."""

    def __init__(self, channel: Channel, loop_lag: Callable[[float], float | None]) -> None:
        self._channel = channel
        self._loop_lag = loop_lag
        self._live: dict[str, Exchange] = {}
        self._asked: dict[str, asyncio.Future[Any]] = {}  # for the previous verdict
        self._previous: BoundedMap[str, str] = BoundedMap(MAX_MODELS_KEPT)  # as last told, by model
        self._diagnosed: set[str] = set()  # whole replies of which all has been told
        self.failures: Counter[str] = Counter()
        self._prompts = PendingPrompts(self.failures)

    def begin(self, exchange: Exchange) -> None:
        """Tell that a request has arrived, unless the observing process does not read."""
        if self._channel.is_full:
            self.failures["observing process"] += 1
            return
        self._live[exchange.request_id] = exchange
        self._channel.tell("begin", packed(exchange))

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to go out; what its head will tell is asked meanwhile."""
        if not self._knows(exchange):
            return
        if exchange.stream:
            asked = self._channel.ask("sent_stream", packed(exchange))
            asked.add_done_callback(partial(self._note_previous, exchange.model or ""))
            self._asked[exchange.request_id] = asked
        else:
            self._channel.tell("sent", packed(exchange))

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Take the prompt's fingerprint here: the prompt itself never leaves this process."""
        if self._knows(exchange):
            note = partial(self._channel.tell, "fingerprinted", exchange.request_id)
            self._prompts.add(exchange.request_id, payload, size_bytes, note)

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has come from its engine."""
        if self._knows(exchange):
            self._channel.tell("arrived", exchange.request_id, exchange.last_byte_at_s)

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return what the head of a stream can say: what is known so far, and the last verdict.

        A stream beside others does not wait for the verdict: the last one that was told serves.
        """
        found = {"server-timing": server_timing(None, exchange.proxy_s)}
        asked = self._asked.pop(exchange.request_id, None)
        if asked is not None and not asked.done() and len(self._live) == 1:
            await self._wait(asked, HEAD_S)
        previous = self._previous.get(exchange.model or "")
        return found | ({"slowtok-previous": previous} if previous else {})

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Have a reply diagnosed that is here as a whole, and return its headers."""
        found: dict[str, str] | None = await self._concluded("diagnose", exchange, WHOLE_S)
        if found:
            self._diagnosed.add(exchange.request_id)
        return found or {}

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream whose last token is here; None where it is late."""
        record: dict[str, Any] | None = await self._concluded("record_so_far", exchange, RECORD_S)
        return record

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, however it ended."""
        exchange.end(None, time.monotonic())
        self._prompts.take(exchange.request_id)
        self._asked.pop(exchange.request_id, None)
        if not self._live.pop(exchange.request_id, None):
            return
        if exchange.request_id in self._diagnosed:
            self._diagnosed.discard(exchange.request_id)
            self._channel.tell_at_once("end_diagnosed", exchange.request_id)
        else:
            self._channel.tell_at_once("end", self._whole(exchange))

    def progress(self) -> list[Progress]:
        """Return how far each request is that is at its engine."""
        now_s = time.monotonic()
        at_engine = (e for e in self._live.values() if e.headers_at_s is not None)
        return [progress_of(exchange, now_s) for exchange in at_engine]

    async def _concluded(self, name: str, exchange: Exchange, timeout_s: float) -> Any:
        if not self._knows(exchange):
            return None
        self._prompts.take(exchange.request_id)
        found = await self._answer(self._channel.ask(name, self._whole(exchange)), timeout_s)
        if found is None:
            self.failures[name.replace("_", " ")] += 1
        return found

    async def _answer(self, asked: asyncio.Future[Any], timeout_s: float) -> Any:
        """Wait for an answer; not again for one who let the last question wait."""
        return await self._channel.wait_for_answer(
            asked, 0.0 if self._channel.is_silent else timeout_s
        )

    async def _wait(self, asked: asyncio.Future[Any], timeout_s: float) -> None:
        """Wait for an answer that is of use later, too."""
        await asyncio.wait((asked,), timeout=0.0 if self._channel.is_silent else timeout_s)

    def _note_previous(self, model: str, asked: asyncio.Future[Any]) -> None:
        """Keep the verdict on the last request of a model."""
        if asked.cancelled() or not (previous := asked.result()):
            return
        self._previous[model] = previous

    def _whole(self, exchange: Exchange) -> tuple[Any, ...]:
        exchange.loop_lag_s = self._loop_lag(exchange.accepted_at_s)
        return packed(exchange)

    def _knows(self, exchange: Exchange) -> bool:
        return exchange.request_id in self._live


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
        """Return True if there are several engines to choose from."""
        return self.known.several

    @property
    def searched_at(self) -> str:
        """Where engines were looked for, for messages."""
        return self.known.searched_at

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
        chosen: RemoteEngine | None = await self._channel.wait_for_answer(asked, CHOOSE_S)
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
        merged: Mapping[str, Any] | None = await self._channel.wait_for_answer(asked, LIST_S)
        return merged

    def lose(self, name: str) -> None:
        """Take note that an engine refused a request: the next one asks again."""
        self.known = replace(self.known, only=None)
        self._channel.tell("lose", name)
