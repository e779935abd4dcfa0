"""A worker's observer and engine directory: each call becomes a message to the observing process.

The observing process diagnoses, and chooses among several engines. Whatever a client has to wait
for is requested with a time-out; without an answer, the reply goes out without it. Tokens are
counted in the worker, which reports the progress of each request four times a second.
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

# Time-outs of what clients wait for; all heuristic.

HEAD_S = 0.05  # head of the only stream in flight, for a verdict requested when it was sent
WHOLE_S = 0.5  # a whole reply, for its diagnosis
RECORD_S = 0.5  # the end of a stream, for its record

SYNC_S = 10.0  # that a page may wait until the observing process knows of all that has happened

CHOOSE_S = 2.0  # the observing process itself may wait a second for an engine
KEEP_CHOSEN = 64
LIST_S = 30.0  # a merged model list: as long as the engines' own lists may take


class RemoteObserver:
    """The `RequestObserver` of one worker.

    A step is reported after the current turn of the event loop, so that the request is sent first.
    """

    def __init__(self, channel: Channel, loop_lag: Callable[[float], float | None]) -> None:
        self._channel = channel
        self._loop_lag = loop_lag
        self._live: dict[str, Exchange] = {}
        self._unreported: dict[str, Exchange] = {}  # exchanges with steps not reported yet
        self._reported: dict[str, bool] = {}  # begun ones: whether the sending was reported
        self._verdict_requests: dict[str, asyncio.Future[Any]] = {}  # for the previous verdict
        self._ended: BoundedMap[str, Exchange] = BoundedMap(MAX_MODELS)  # streams to judge
        self._verdicts = PreviousVerdicts()
        self._diagnosed: set[str] = set()  # whole replies that are fully reported
        self._short: ShortRequests | None = None  # None until setups are known
        self.failures: Counter[str] = Counter()
        self._prompts = PendingPrompts(self.failures)

    def learn(self, setups: Mapping[SetupKey, Case | None]) -> None:
        """Store the facts that short requests of these setups are judged against."""
        self._short = self._short or ShortRequests()
        self._short.learn(setups)

    def begin(self, exchange: Exchange) -> None:
        """Report that a request has arrived, unless the channel is full."""
        if self._channel.is_full:
            self.failures["observing process"] += 1
            return
        self._live[exchange.request_id] = exchange
        self._report_soon(exchange)

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to be sent.

        A stream then requests the previous verdict for its head, while the engine works.
        """
        if self._is_live(exchange):
            self._report_soon(exchange)

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Take the prompt's fingerprint in this process: the prompt itself never leaves it."""
        if self._is_live(exchange):
            note = partial(self._note_fingerprint, exchange)
            self._prompts.add(exchange.request_id, payload, size_bytes, note)

    def arrived(self, exchange: Exchange) -> None:
        """Report the last byte of a stream; for a whole reply, the diagnosis request does."""
        if exchange.stream and self._is_live(exchange):
            self._report_steps(exchange)
            self._channel.tell("arrived", exchange.request_id, exchange.last_byte_at_s)

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return the slowtok headers of a stream, with the previous verdict as known here.

        Only a stream without others in flight waits for a verdict that was requested.
        """
        fields = {"server-timing": headers.server_timing(None, exchange.proxy_s)}
        self._report_steps(exchange)
        verdict_request = self._verdict_requests.pop(exchange.request_id, None)
        if verdict_request is not None and not verdict_request.done() and len(self._live) == 1:
            await self._wait(verdict_request, HEAD_S)
        return fields | self._verdicts.header(exchange.model)

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return the slowtok headers of a complete reply.

        A short request is judged in this process, and waits only while the observing process is far
        behind. It is asked instead where only it knows the previous verdict, unless it is silent.
        """
        is_up_to_date = self._is_up_to_date(exchange.model)
        if is_up_to_date or not self._channel.is_responsive:
            previous = self._verdicts.header(exchange.model) if is_up_to_date else {}
            if (judged := self._judge_short(exchange)) is not None:
                case, _ = judged
                exchange.judged_against = case.envelope, case.baseline
                await self._channel.wait_until_caught_up(WHOLE_S)
                return headers.diagnosis_headers(*judged) | previous
        answer: Diagnosed | None = await self._concluded("diagnose", exchange, WHOLE_S)
        fields, verdict = answer or ({}, None)
        if fields:
            self._diagnosed.add(exchange.request_id)
        self._note_verdict(exchange.model, verdict)
        return fields

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream after its last token; None if it is late."""
        record: dict[str, Any] | None = await self._concluded("record_so_far", exchange, RECORD_S)
        return record

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, in whatever way it ended."""
        exchange.end(None, time.monotonic())
        self._prompts.take(exchange.request_id)
        self._verdict_requests.pop(exchange.request_id, None)
        if exchange.api is not None:
            self._verdicts.ended(exchange)
            if exchange.stream and self._short:
                self._ended[exchange.model or ""] = exchange
        if not self._live.pop(exchange.request_id, None):
            return
        self._report_steps(exchange)
        # several workers report at once: a client may request the record from another one
        tell = self._channel.tell if self._short else self._channel.tell_at_once
        if exchange.request_id in self._diagnosed:
            self._diagnosed.discard(exchange.request_id)
            tell("end_diagnosed", exchange.request_id)
        else:
            tell("end", *self._unreported_fields(exchange))
        self._reported.pop(exchange.request_id, None)

    async def sync(self) -> None:
        """Wait until the observing process knows of everything up to now, `SYNC_S` at most."""
        self._report_all()
        await self._wait(self._channel.ask("sync"), SYNC_S)

    def progress(self) -> list[Progress]:
        """Return the progress of each request whose reply has begun."""
        now_s = time.monotonic()
        at_engine = (e for e in self._live.values() if e.headers_at_s is not None)
        return [progress_of(exchange, now_s) for exchange in at_engine]

    def _report_soon(self, exchange: Exchange) -> None:
        if not self._unreported:
            asyncio.get_running_loop().call_soon(self._report_all)
        self._unreported[exchange.request_id] = exchange

    def _report_all(self) -> None:
        for exchange in list(self._unreported.values()):
            self._report_steps(exchange)

    def _report_steps(self, exchange: Exchange) -> None:
        """Report the steps of a request since the last report."""
        request_id, reported = exchange.request_id, self._reported
        if self._unreported.pop(request_id, None) is None:
            return
        if request_id not in reported:
            reported[request_id] = False
            self._channel.tell("begin", packed_begin(exchange))
        if exchange.sent_at_s is None or reported[request_id]:
            return
        reported[request_id] = True
        if exchange.stream and not self._is_up_to_date(exchange.model):
            verdict_request = self._channel.ask("sent_stream", request_id, packed_sending(exchange))
            verdict_request.add_done_callback(partial(self._note_previous_verdict, exchange.model))
            self._verdict_requests[request_id] = verdict_request
        else:
            self._channel.tell("sent", request_id, packed_sending(exchange))

    def _is_up_to_date(self, model: str | None) -> bool:
        """Return True if the verdict on the model's request that ended last is known here."""
        if self._short is None:
            return False
        if (ended := self._ended.pop(model or "", None)) is not None:
            self._judge_short(ended)
        return self._verdicts.is_up_to_date(model)

    async def _concluded(self, name: str, exchange: Exchange, timeout_s: float) -> Any:
        if not self._is_live(exchange):
            return None
        self._prompts.take(exchange.request_id)
        self._report_steps(exchange)
        answer = await self._answer(
            self._channel.ask(name, *self._unreported_fields(exchange)), timeout_s
        )
        if answer is None:
            self.failures[name.replace("_", " ")] += 1
        return answer

    async def _answer(self, answer: asyncio.Future[Any], timeout_s: float) -> Any:
        """Wait for an answer; not at all while the channel is silent (`Channel.is_silent`)."""
        return await self._channel.wait_for_answer(
            answer, 0.0 if self._channel.is_silent else timeout_s
        )

    async def _wait(self, answer: asyncio.Future[Any], timeout_s: float) -> None:
        """Wait for an answer without cancelling it at the time-out: it is of use later, too."""
        await asyncio.wait((answer,), timeout=0.0 if self._channel.is_silent else timeout_s)

    def _judge_short(self, exchange: Exchange) -> tuple[Case, Diagnosis] | None:
        """Judge a short request and keep its verdict; None if the observing process has to."""
        try:
            judged = self._short.judge(exchange) if self._short else None
        except Exception:  # noqa: BLE001 - then the observing process judges it
            self.failures["short requests"] += 1
            return None
        if judged is not None:
            self._verdicts.judged(exchange, judged[1])
        return judged

    def _note_fingerprint(self, exchange: Exchange, fingerprint: PromptFingerprint) -> None:
        self._report_steps(exchange)
        self._channel.tell("fingerprinted", exchange.request_id, fingerprint)

    def _note_previous_verdict(
        self, model: str | None, verdict_request: asyncio.Future[EndedVerdict | None]
    ) -> None:
        if not verdict_request.cancelled():
            self._note_verdict(model, verdict_request.result())

    def _note_verdict(self, model: str | None, verdict: EndedVerdict | None) -> None:
        if verdict is not None:
            self._verdicts.note(model, verdict)

    def _unreported_fields(self, exchange: Exchange) -> tuple[str, Packed | None, Packed]:
        """Return all fields of an exchange that have not been reported yet."""
        exchange.loop_lag_s = self._loop_lag(exchange.accepted_at_s)
        request_id = exchange.request_id
        at_sending = None if self._reported.get(request_id) else packed_sending(exchange)
        return request_id, at_sending, packed_end(exchange)

    def _is_live(self, exchange: Exchange) -> bool:
        return exchange.request_id in self._live


class RemoteEngines:
    """The `EngineDirectory` of one worker.

    If there is a single engine and it answers, it is known here; otherwise the observing process is
    asked. If that does not answer in time, its last choice is used, or the first engine.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.directory = RemoteDirectory()  # until it is told
        self._chosen: BoundedMap[tuple[str | None, str], RemoteEngine] = BoundedMap(KEEP_CHOSEN)

    def update_directory(self, directory: RemoteDirectory) -> None:
        """Store which engines there are."""
        self.directory = directory

    @property
    def several(self) -> bool:
        """Whether there are several engines to choose from."""
        return self.directory.several

    @property
    def searched_at(self) -> str:
        """The addresses where engines were searched, for error messages."""
        return self.directory.searched_at

    async def choose(
        self, model: str | None, path: str, keys: Mapping[str, str]
    ) -> RemoteEngine | None:
        """Return the engine for a request; None if there is none."""
        if self.directory.only is not None:
            return self.directory.only
        last_chosen = self._chosen.get((model, path), self.directory.first)
        if last_chosen is not None and self._channel.is_silent:
            return last_chosen
        answer = self._channel.ask("choose", model, path, dict(keys))
        chosen: RemoteEngine | None = await self._channel.wait_for_answer(answer, CHOOSE_S)
        if chosen is None:
            return None if self._channel.is_responsive else last_chosen
        self._chosen[model, path] = chosen
        return chosen

    async def merged_list(
        self, method: str, path: str, keys: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Return the merged model list of several engines; None if one engine gets the request."""
        if not self.several or method != "GET" or path not in MODEL_LISTS:
            return None
        answer = self._channel.ask("merged_list", method, path, dict(keys))
        merged: Mapping[str, Any] | None = await self._channel.wait_for_answer(answer, LIST_S)
        return merged

    def lose(self, name: str) -> None:
        """Note that an engine refused a connection: the next request asks for an engine again."""
        self.directory = replace(self.directory, only=None)
        self._channel.tell("lose", name)
