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

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.engines.routing import MODEL_LISTS
from slowtok.proxy.observe.pending_prompts import PendingPrompts
from slowtok.proxy.observe.setups import SetupKey
from slowtok.proxy.outputs import headers
from slowtok.proxy.outputs.previous_verdicts import MAX_MODELS, EndedVerdict, PreviousVerdicts
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint
from slowtok.proxy.workers.channel import Channel
from slowtok.proxy.workers.short_requests import ShortRequests
from slowtok.proxy.workers.wire import (
    Diagnosed,
    Packed,
    Progress,
    RemoteDirectory,
    RemoteEngine,
    packed_begin,
    packed_end,
    packed_sending,
    progress_of,
)

# How long each thing may be waited for; all heuristic.

HEAD_S = 0.05  # that the head of a stream may wait which is alone; asked long before, it is there
WHOLE_S = 0.5  # that a whole reply may wait for its diagnosis
RECORD_S = 0.5  # that the end of a stream may wait for its record

CHOOSE_S = 2.0  # the observing process itself may wait a second for an engine
KEEP_CHOSEN = 64
LIST_S = 30.0  # as long as it may wait for the engines' own lists


class RemoteObserver:
    """The `RequestObserver` of one worker.

    A step is told once the turn of the loop is over in which it was made, so that the request goes
    out first.
    """

    def __init__(self, channel: Channel, loop_lag: Callable[[float], float | None]) -> None:
        self._channel = channel
        self._loop_lag = loop_lag
        self._live: dict[str, Exchange] = {}
        self._untold: dict[str, Exchange] = {}  # those that made a step since they were told of
        self._told: dict[str, bool] = {}  # of `_live`: whether the sending was told, too
        self._asked: dict[str, asyncio.Future[Any]] = {}  # for the previous verdict
        self._ended: BoundedMap[str, Exchange] = BoundedMap(MAX_MODELS)  # streams to be judged
        self._verdicts = PreviousVerdicts()
        self._diagnosed: set[str] = set()  # whole replies of which all has been told
        self._short: ShortRequests | None = None  # until setups are told
        self.failures: Counter[str] = Counter()
        self._prompts = PendingPrompts(self.failures)

    def learn(self, setups: Mapping[SetupKey, Case]) -> None:
        """Take note of what short requests of these setups are held against, to judge them here."""
        self._short = self._short or ShortRequests()
        self._short.learn(setups)

    def begin(self, exchange: Exchange) -> None:
        """Tell that a request has arrived, unless the observing process does not read."""
        if self._channel.is_full:
            self.failures["observing process"] += 1
            return
        self._live[exchange.request_id] = exchange
        self._tell_soon(exchange)

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to go out; what its head will tell is asked meanwhile."""
        if self._knows(exchange):
            self._tell_soon(exchange)

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Take the prompt's fingerprint here: the prompt itself never leaves this process."""
        if self._knows(exchange):
            note = partial(self._note_fingerprint, exchange)
            self._prompts.add(exchange.request_id, payload, size_bytes, note)

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has come; of a whole one its diagnosis tells it."""
        if exchange.stream and self._knows(exchange):
            self._tell_steps(exchange)
            self._channel.tell("arrived", exchange.request_id, exchange.last_byte_at_s)

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return what the head of a stream can say: what is known so far, and the last verdict.

        A stream beside others does not wait for the verdict: the last one that was told serves.
        """
        found = {"server-timing": headers.server_timing(None, exchange.proxy_s)}
        self._tell_steps(exchange)
        asked = self._asked.pop(exchange.request_id, None)
        if asked is not None and not asked.done() and len(self._live) == 1:
            await self._wait(asked, HEAD_S)
        return found | self._verdicts.header(exchange.model)

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return the headers of a reply that is here as a whole.

        A short one is judged here. It waits only while the observing process is far behind.
        """
        if self._is_up_to_date(exchange.model):
            previous = self._verdicts.header(exchange.model)
            if (judged := self._judge_short(exchange)) is not None:
                await self._channel.caught_up(WHOLE_S)
                return headers.diagnosis_headers(*judged) | previous
        told: Diagnosed | None = await self._concluded("diagnose", exchange, WHOLE_S)
        found, verdict = told or ({}, None)
        if found:
            self._diagnosed.add(exchange.request_id)
        self._note_verdict(exchange.model, verdict)
        return found

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream whose last token is here; None where it is late."""
        record: dict[str, Any] | None = await self._concluded("record_so_far", exchange, RECORD_S)
        return record

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, however it ended."""
        exchange.end(None, time.monotonic())
        self._prompts.take(exchange.request_id)
        self._asked.pop(exchange.request_id, None)
        if exchange.api is not None:
            self._verdicts.ended(exchange)
            if exchange.stream:
                self._ended[exchange.model or ""] = exchange
        if not self._live.pop(exchange.request_id, None):
            return
        self._tell_steps(exchange)
        # of several workers each tells at once: a client may ask another one for the record
        tell = self._channel.tell if self._short else self._channel.tell_at_once
        if exchange.request_id in self._diagnosed:
            self._diagnosed.discard(exchange.request_id)
            tell("end_diagnosed", exchange.request_id)
        else:
            tell("end", *self._whole(exchange))
        self._told.pop(exchange.request_id, None)

    def progress(self) -> list[Progress]:
        """Return how far each request is that is at its engine."""
        now_s = time.monotonic()
        at_engine = (e for e in self._live.values() if e.headers_at_s is not None)
        return [progress_of(exchange, now_s) for exchange in at_engine]

    def _tell_soon(self, exchange: Exchange) -> None:
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_all)
        self._untold[exchange.request_id] = exchange

    def _tell_all(self) -> None:
        for exchange in list(self._untold.values()):
            self._tell_steps(exchange)

    def _tell_steps(self, exchange: Exchange) -> None:
        """Tell of the steps that a request has made since it was told of."""
        request_id, is_told = exchange.request_id, self._told
        if self._untold.pop(request_id, None) is None:
            return
        if request_id not in is_told:
            is_told[request_id] = False
            self._channel.tell("begin", packed_begin(exchange))
        if exchange.sent_at_s is None or is_told[request_id]:
            return
        is_told[request_id] = True
        if exchange.stream and not self._is_up_to_date(exchange.model):
            asked = self._channel.ask("sent_stream", request_id, packed_sending(exchange))
            asked.add_done_callback(partial(self._note_asked, exchange.model))
            self._asked[request_id] = asked
        else:
            self._channel.tell("sent", request_id, packed_sending(exchange))

    def _is_up_to_date(self, model: str | None) -> bool:
        """Return True if the verdict on a model's request that ended last is known here."""
        if self._short is None:
            return False
        if (ended := self._ended.pop(model or "", None)) is not None:
            self._judge_short(ended)
        return self._verdicts.is_up_to_date(model)

    async def _concluded(self, name: str, exchange: Exchange, timeout_s: float) -> Any:
        if not self._knows(exchange):
            return None
        self._prompts.take(exchange.request_id)
        self._tell_steps(exchange)
        found = await self._answer(self._channel.ask(name, *self._whole(exchange)), timeout_s)
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

    def _judge_short(self, exchange: Exchange) -> tuple[Case, Diagnosis] | None:
        """Judge a request that was short, and keep its verdict; None where it has to be asked."""
        try:
            judged = self._short.judge(exchange) if self._short else None
        except Exception:  # noqa: BLE001 - then the observing process judges it
            self.failures["short requests"] += 1
            return None
        if judged is not None:
            self._verdicts.judged(exchange, judged[1])
        return judged

    def _note_fingerprint(self, exchange: Exchange, fingerprint: PromptFingerprint) -> None:
        self._tell_steps(exchange)
        self._channel.tell("fingerprinted", exchange.request_id, fingerprint)

    def _note_asked(self, model: str | None, asked: asyncio.Future[EndedVerdict | None]) -> None:
        if not asked.cancelled():
            self._note_verdict(model, asked.result())

    def _note_verdict(self, model: str | None, verdict: EndedVerdict | None) -> None:
        if verdict is not None:
            self._verdicts.note(model, verdict)

    def _whole(self, exchange: Exchange) -> tuple[str, Packed | None, Packed]:
        """Return all that was not told of an exchange yet."""
        exchange.loop_lag_s = self._loop_lag(exchange.accepted_at_s)
        request_id = exchange.request_id
        at_sending = None if self._told.get(request_id) else packed_sending(exchange)
        return request_id, at_sending, packed_end(exchange)

    def _knows(self, exchange: Exchange) -> bool:
        return exchange.request_id in self._live


class RemoteEngines:
    """A `EngineDirectory`. Where one engine answers nobody is asked; else the observing process is.

    Where it does not answer in time, what it chose last stands, or the one engine that there was.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.known = RemoteDirectory()  # until it is told
        self._was_only: RemoteEngine | None = None
        self._chosen: BoundedMap[tuple[str | None, str], RemoteEngine] = BoundedMap(KEEP_CHOSEN)

    def know(self, directory: RemoteDirectory) -> None:
        """Take note of which engines there are."""
        self.known = directory
        if directory.several or directory.only is not None:
            self._was_only = directory.only

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
        before = self._chosen.get((model, path), self._was_only)
        if before is not None and self._channel.is_silent:
            return before
        asked = self._channel.ask("choose", model, path, dict(keys))
        chosen: RemoteEngine | None = await self._channel.wait_for_answer(asked, CHOOSE_S)
        if chosen is None:
            return before if self._channel.is_silent or self._channel.is_full else None
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
