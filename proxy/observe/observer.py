"""The observer: turns a finished exchange into its case and diagnosis, and feeds the outputs.

Nothing here may harm a request: every exception is counted in `failures` by its place.
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.engines.counters.slots import SlotsLook
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.history import EngineHistory
from slowtok.proxy.observe.abandoned import AbandonedLog
from slowtok.proxy.observe.case_builder import CaseBuilder
from slowtok.proxy.observe.occupancy import Occupancy, OccupancyLog
from slowtok.proxy.observe.pending_prompts import PendingPrompts
from slowtok.proxy.observe.prompts import KEEP_PER_MODEL, PromptEstimates, Prompts
from slowtok.proxy.observe.runs import Runs
from slowtok.proxy.observe.setups import SetupLog
from slowtok.proxy.observe.slot_owners import SlotOwners
from slowtok.proxy.outputs import headers
from slowtok.proxy.outputs.in_flight import running
from slowtok.proxy.outputs.previous_verdicts import EndedVerdict, PreviousVerdicts
from slowtok.proxy.outputs.record import make_record
from slowtok.proxy.outputs.record_ring import RecordRing
from slowtok.proxy.outputs.sink import Sink, Step, Watcher
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.work_queue import WorkQueue
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint, parts_of

LAST_SAMPLE_S = 0.15  # time-out of a stream's last sample; its record is due within 0.25 s
NEXT_FIRST_S = 0.02  # delay after a stream: an agent's next request comes at once, and goes first
PUBLISH_AFTER_S = 0.005  # delay of a record: its reply goes first, and perhaps the next request
COUNTERS_S = 0.05  # time-out of the engine's counters, for which a whole reply waits

CROWD = 16
"""With so many requests in flight, none gets samples of its own at its begin and end: the ten
samples a second serve all of them. Heuristic."""

GAVE_UP = frozenset({"client-gone", "timeout"})
"""Endings after which a client may repeat the very same request."""


class Observer:
    """Follows exchanges from begin to end, diagnoses each, and publishes its record.

    A request is in `_live` from `begin` to `end`. A stream is then in `_awaiting_sample` until its
    last sample has arrived, or the next request of its model needs its verdict. What was diagnosed
    before it can be published is in `_concluded`. `_publishing` makes the records, one at a time.
    """

    def __init__(
        self,
        *,
        engines: Engines,
        device: Callable[[], DeviceFacts],
        sampler: Sampler,
        baselines: Baselines,
        past: EngineHistory,
        loop_lag: Callable[[float], float | None],
        store: RecordRing,
        runs: Runs,
        sinks: Mapping[str, Sink],
        disabled: Collection[str] = (),
    ) -> None:
        self._engines = engines
        self._sampler = sampler
        self._baselines = baselines
        self._past = past
        self.failures: Counter[str] = Counter()
        self._abandoned = AbandonedLog()
        self._cases = CaseBuilder(
            engines=engines,
            sampler=sampler,
            device=device,
            baselines=baselines,
            past=past,
            failures=self.failures,
            loop_lag=loop_lag,
            abandoned=self._abandoned,
        )
        self._store = store
        self._runs = runs
        self.setups = SetupLog()
        self._sinks = sinks
        self._watchers = {n: sink for n, sink in sinks.items() if isinstance(sink, Watcher)}
        self._disabled = disabled
        self._prompts = Prompts()
        self._prompt_estimates = PromptEstimates()
        self._slot_owners: defaultdict[str, SlotOwners] = defaultdict(SlotOwners)
        self._live: dict[str, Exchange] = {}
        self._occupancy_log = OccupancyLog()
        self._awaiting_sample: dict[str, tuple[Exchange, asyncio.Task[None]]] = {}
        self._publish_lock = asyncio.Lock()
        self._concluded: dict[str, tuple[Case, Diagnosis]] = {}
        self._verdicts = PreviousVerdicts()
        self._pending = PendingPrompts(self.failures)
        self._publishing = WorkQueue(self.failures, "diagnosis", after_s=PUBLISH_AFTER_S)
        self.requests = 0
        self.diagnosed = 0
        self.diagnose_s = 0.0

    @property
    def in_flight(self) -> int:
        """How many requests are in flight."""
        return len(self._live)

    def running(self) -> list[dict[str, Any]]:
        """Return each generation in flight, with its progress."""
        return running(self._live.values(), time.monotonic())

    @property
    def live(self) -> Collection[Exchange]:
        """The requests in flight."""
        return self._live.values()

    def is_asked(self, engine_name: str) -> bool:
        """Return True if a generation is in flight at that engine."""
        live = (e for e in self._live.values() if e.api and e.last_byte_at_s is None)
        return any(e.engine_name == engine_name for e in live)

    def begin(self, exchange: Exchange) -> None:
        """Note that a request has arrived."""
        self.requests += 1
        self._live[exchange.request_id] = exchange
        self._store.expect(exchange.request_id)
        if exchange.api is not None:
            self._sampler.set_active(True, edge=not self._is_crowded)
        self._note("begin", exchange)

    def sent(self, exchange: Exchange) -> None:
        """Note that a request is about to be sent to its engine."""
        self._note("sent", exchange)
        if exchange.api is not None:
            self._runs.sent(exchange)
            exchange.awaits_load = self._engines.awaits_load(exchange.engine_name, exchange.model)
            self._engines.note_sent(exchange.engine_name, exchange.model)

    def arrived(self, exchange: Exchange) -> None:
        """Note that the last byte of a reply has arrived from its engine."""
        if exchange.api is not None:
            reply = exchange.meter.reply if exchange.meter else None
            load_and_fingerprint = (
                (None, None) if reply is None else (reply.load_s, reply.fingerprint)
            )
            self._engines.note_arrived(exchange.engine_name, *load_and_fingerprint)

    def end(self, exchange: Exchange) -> None:
        """Note that a request is over, in whatever way it ended."""
        now_s = time.monotonic()
        exchange.end(None, now_s)
        self._pending.take(exchange.request_id)
        if exchange.last_byte_at_s is None:  # it was cut off: nothing has arrived
            try:
                self.arrived(exchange)
            except Exception:  # noqa: BLE001 - as in _wait
                self.failures["engine counters"] += 1
        del self._live[exchange.request_id]
        self._runs.ended(exchange)
        self._note("end", exchange)
        self._occupancy_log.note(exchange, now_s)
        self._abandoned.note(exchange, now_s)
        if exchange.request_id in self._concluded or not exchange.stream:
            self._publishing.add(partial(self._publish, exchange))
        else:
            waiting = asyncio.create_task(self._publish_when_sampled(exchange))
            self._awaiting_sample[exchange.request_id] = (exchange, waiting)
        for other in self._live.values():
            if other.api is not None:
                break
        else:
            self._sampler.set_active(False)

    def note_prompt(self, exchange: Exchange, payload: Mapping[str, Any], size_bytes: int) -> None:
        """Compare the prompt with earlier ones; done later, so that the stream is not delayed."""
        note = partial(self.note_fingerprint, exchange)
        self._pending.add(exchange.request_id, payload, size_bytes, note)

    def note_fingerprint(self, exchange: Exchange, fingerprint: PromptFingerprint) -> None:
        """Compare a prompt's fingerprint with earlier ones.

        Ended requests are concluded first: one may belong to this conversation, or have evicted it
        from the cache.
        """
        if exchange.request_id not in self._live:
            return  # a large prompt, which took longer than its reply
        self._publish_each(self._just_ended(exchange.model, KEEP_PER_MODEL))
        self.publish_all()
        self._compare(exchange, fingerprint)
        self._runs.fingerprinted(exchange, fingerprint)

    def note_slots(self, engine_name: str, model: str | None, look: SlotsLook) -> None:
        """Record the progress of an engine's slots, of one model if the engine runs several."""
        asked = [
            exchange
            for exchange in self._live.values()
            if exchange.api and exchange.engine_name == engine_name
            if exchange.last_byte_at_s is None and model in (None, exchange.model)
        ]
        self._slot_owners[engine_name].note(look, asked, time.monotonic())

    async def stream_headers(self, exchange: Exchange) -> dict[str, str]:
        """Return the slowtok headers of a stream, with the previous verdict of its model."""
        fields = {"server-timing": headers.server_timing(None, exchange.proxy_s)}
        self._conclude_previous(exchange.model)
        return fields | self._verdicts.header(exchange.model)

    def last_verdict(self, model: str | None) -> EndedVerdict | None:
        """Return the verdict on the model's request that ended last, diagnosing it if necessary."""
        self._conclude_previous(model)
        return self._verdicts.last(model)

    async def diagnosis_headers(self, exchange: Exchange) -> dict[str, str]:
        """Diagnose a complete reply and return its headers.

        Waits shortly for the counters of an engine that puts no timings into its replies, and for a
        probe of an engine that has reloaded its model.
        """
        name = exchange.engine_name
        self._pending.take(exchange.request_id)
        if exchange.meter is None or not exchange.meter.reply.is_timed:
            await self._wait(
                "engine counters", lambda: self._engines.wait_for_scrapes(name, COUNTERS_S)
            )
        await self._wait("engine look", lambda: self._engines.wait_for_look(name, COUNTERS_S))
        if exchange.request_id not in self._live:  # a worker's, which did not wait so long
            return {}
        try:
            self._conclude_previous(exchange.model)
            previous = self._verdicts.header(exchange.model)
            case, diagnosis = self._diagnose(exchange)
            fields = headers.diagnosis_headers(case, diagnosis) | previous
        except Exception:  # noqa: BLE001 - the reply goes out without its diagnosis
            self.failures["diagnosis"] += 1
            return {}
        self._concluded[exchange.request_id] = (case, diagnosis)
        self._verdicts.judged(exchange, diagnosis)
        return fields

    async def record_so_far(self, exchange: Exchange) -> dict[str, Any] | None:
        """Return the record of a stream after its last token, perhaps without its last sample.

        It is not kept: the record that is logged is made when all samples are there.
        """
        self._pending.take(exchange.request_id)
        try:
            case = self._cases.case(exchange, self._overlapping(exchange))
            diagnosis = diagnose(case, disabled=self._disabled)
            return make_record(case, diagnosis) | self._runs.fields(exchange)
        except Exception:  # noqa: BLE001 - the stream goes on without its record
            self.failures["annotation"] += 1
            return None

    def conclude_all(self) -> None:
        """Diagnose and publish the streams that still wait for samples: the proxy stops."""
        self._publish_each(list(self._awaiting_sample))
        self.publish_all()

    def publish_all(self) -> None:
        """Publish all queued records now, because they are requested or depended on."""
        self._publishing.do_all()

    @property
    def _is_crowded(self) -> bool:
        return len(self._live) >= CROWD

    def _note(self, step: Step, exchange: Exchange) -> None:
        for name, watcher in self._watchers.items():
            try:
                watcher.note(step, exchange)
            except Exception:  # noqa: BLE001 - a failing output costs only itself
                self.failures[f"sink {name}"] += 1

    def _publish_now(self, request_id: str) -> None:
        waiting = self._awaiting_sample.pop(request_id, None)
        if waiting is not None:
            self._publish(waiting[0])

    async def _publish_when_sampled(self, exchange: Exchange) -> None:
        await asyncio.sleep(NEXT_FIRST_S)
        if exchange.request_id not in self._awaiting_sample:
            return  # it was concluded for another's header
        name = exchange.engine_name
        until_s = time.monotonic() + LAST_SAMPLE_S  # for both; counters were asked for already
        if not self._is_crowded:
            await self._wait("sampling", lambda: self._sampler.wait_for_fresh_sample(LAST_SAMPLE_S))
        left_s = max(until_s - time.monotonic(), 0.0)
        await self._wait("engine counters", lambda: self._engines.wait_for_scrapes(name, left_s))
        left_s = max(until_s - time.monotonic(), 0.0)
        await self._wait("engine look", lambda: self._engines.wait_for_look(name, left_s))
        async with self._publish_lock:  # of many that end at once: streams go on in between
            self._publish_now(exchange.request_id)
            await asyncio.sleep(0)

    async def _wait(self, place: str, ask: Callable[[], Awaitable[object]]) -> None:
        try:
            await ask()
        except Exception:  # noqa: BLE001 - it costs the last reading, not the record
            self.failures[place] += 1

    def _publish(self, exchange: Exchange) -> None:
        concluded = self._concluded.pop(exchange.request_id, None)
        try:
            case, diagnosis = concluded or self._conclude(exchange)
            record = make_record(case, diagnosis) | self._runs.fields(exchange)
        except Exception:  # noqa: BLE001 - a request that cannot be explained is still counted
            self.failures["diagnosis"] += 1
            self._store.forget(exchange.request_id)
            return
        self._store.add(record)
        self._runs.ledger.add(record)
        try:
            self._remember(exchange, case, diagnosis)
        except Exception:  # noqa: BLE001 - it costs what later requests could be compared with
            self.failures["memory"] += 1
        for name, sink in self._sinks.items():
            try:
                sink(case, diagnosis, record)
            except Exception:  # noqa: BLE001 - a failing sink costs only itself
                self.failures[f"sink {name}"] += 1

    def _conclude(self, exchange: Exchange) -> tuple[Case, Diagnosis | None]:
        if exchange.api is None:
            return self._cases.case(exchange, self._overlapping(exchange)), None
        return self._diagnose(exchange)

    def _diagnose(self, exchange: Exchange) -> tuple[Case, Diagnosis]:
        begin_s = time.monotonic()
        case = self._cases.case(exchange, self._overlapping(exchange))
        diagnosis = diagnose(case, disabled=self._disabled)
        for cause in diagnosis.failed:
            self.failures[f"detector {cause}"] += 1
        self.diagnosed += 1
        self.diagnose_s += time.monotonic() - begin_s
        return case, diagnosis

    def _overlapping(self, exchange: Exchange) -> list[Occupancy]:
        return self._occupancy_log.overlapping(exchange, self._live.values(), time.monotonic())

    def _remember(self, exchange: Exchange, case: Case, diagnosis: Diagnosis | None) -> None:
        """Store what later requests are compared with."""
        if diagnosis is None:
            return
        served_by = _served_by(exchange)
        if exchange.prompt is not None:
            self._remember_prompt(served_by, exchange.prompt, case)
        self._prompt_estimates.learn(served_by, exchange, case)
        self._verdicts.judged(exchange, diagnosis)
        has_taught = self._baselines.learn(case, diagnosis)
        self._past.note(case, diagnosis)
        if exchange.engine_name is not None:
            self.setups.note(
                exchange.engine_name, case, self._baselines.find, has_taught=has_taught
            )

    def _remember_prompt(self, served_by: str, prompt: PromptFingerprint, case: Case) -> None:
        """Store the fingerprint of a prompt that was read, and an attempt that was cut short."""
        timeline = case.timeline
        if _was_read(case):
            self._prompts.remember(served_by, prompt, timeline.accepted_at_s)
        if timeline.ended in GAVE_UP:
            spent_s = case.phases.total_s
            self._prompts.note_cut(
                served_by, prompt, timeline.accepted_at_s + spent_s, spent_s, timeline.ended
            )

    def _just_ended(self, model: str | None, most: int) -> Sequence[str]:
        """Return the newest streams of a model that wait for samples, oldest first."""
        newest = reversed(self._awaiting_sample.values())
        ended = (other.request_id for other, _ in newest if other.model == model)
        return list(itertools.islice(ended, most))[::-1]

    def _publish_each(self, request_ids: Iterable[str]) -> None:
        """Publish streams without their last samples, because the next request is here."""
        for request_id in request_ids:
            self._publish_now(request_id)

    def _conclude_previous(self, model: str | None) -> None:
        """Diagnose the model's newest stream that waits for samples, and publish it later.

        A header is about to report its verdict.
        """
        for request_id in self._just_ended(model, 1) if self._awaiting_sample else ():
            previous = self._awaiting_sample.pop(request_id)[0]
            with contextlib.suppress(Exception):  # counted when it is to be published
                self._concluded[request_id] = concluded = self._diagnose(previous)
                self._verdicts.judged(previous, concluded[1])
            self._publishing.add(partial(self._publish, previous))

    def _compare(self, exchange: Exchange, fingerprint: PromptFingerprint) -> None:
        """Compare a prompt with earlier ones of the same engine and model, and store the result."""
        served_by = _served_by(exchange)
        exchange.prompt = fingerprint
        exchange.parts = parts_of(fingerprint)
        exchange.prefix = self._prompts.compare(served_by, fingerprint, exchange.accepted_at_s)
        exchange.repeat = self._prompts.repeat(served_by, fingerprint, exchange.accepted_at_s)
        exchange.prompt_estimate = self._prompt_estimates.estimate(served_by, exchange)


def _was_read(case: Case) -> bool:
    """Return True if the engine has finished prefill; status 200 alone may come before that."""
    has_completion = case.timeline.tokens.completion is not None
    return case.timeline.first_token_at_s is not None or has_completion


def _served_by(exchange: Exchange) -> str:
    return f"{exchange.engine_name} {exchange.model or ''}"
