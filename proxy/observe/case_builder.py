"""Builds the `Case` of a request from everything that is known about it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from slowtok.detectors.case.case import (
    Baseline,
    Case,
    Envelope,
    History,
    Neighbours,
    Phases,
    Timeline,
)
from slowtok.detectors.case.engine import EngineActivity
from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.detectors.expectation.envelope import expectation, refined
from slowtok.proxy.engines.counters.scraper import GAUGED
from slowtok.proxy.engines.counters.slots import BusySlots
from slowtok.proxy.engines.drivers.ollama import counts_cached
from slowtok.proxy.engines.engine import facts_at
from slowtok.proxy.engines.gpus_used import gpus_used, seen_from
from slowtok.proxy.engines.registry import Engine, Engines
from slowtok.proxy.history.baselines import NO_BASELINE, Baselines
from slowtok.proxy.history.history import NO_HISTORY, EngineHistory
from slowtok.proxy.observe.abandoned import AbandonedLog
from slowtok.proxy.observe.concurrency import (
    Look,
    count_neighbours,
    of_gauges,
    of_slots,
    queue_bounds,
    slots_bounds,
    while_read,
    while_waiting,
    with_looks,
)
from slowtok.proxy.observe.corrections import (
    counted_timings,
    with_counted_cached,
    with_inferred_load,
    without_cached,
    without_loading_lines,
)
from slowtok.proxy.observe.occupancy import Occupancy, in_flight_at
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.sampling.protocol import ProcessFacts
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.stream.phases import estimate, split, with_queue, without_prefill

MIN_SAMPLE_WINDOW_S = 1.0
"""Least window of samples for a request, which may be shorter than the interval of idle samples."""

Sampled = tuple[tuple[HostSample, ...], tuple[GpuSample, ...], tuple[int, ...] | None]
"""Samples of the host, samples of the GPUs, and the indices of the GPUs that the server uses."""

Past = tuple[Envelope, Baseline, History]
"""The expectation, refined by the baseline; the baseline; and the history."""

UNSEEN: Sampled = ((), (), None)
"""No samples, for an engine on another machine: this machine's samples do not concern it."""

BEFORE_S = 5.0
"""How far back a task seen at work counts as another request's. Before that, the engine may have
been restarted, which restarts its task numbers. Heuristic."""

JUST_BEFORE_S = 1.0
"""How old a look at gauges may be at the request's sending: they are read once a second while
requests are in flight, and when one arrives."""


class CaseBuilder:
    """Collects the facts for a case: exchange, samples, engine, other requests, and history."""

    def __init__(
        self,
        *,
        engines: Engines,
        sampler: Sampler,
        device: Callable[[], DeviceFacts],
        baselines: Baselines,
        past: EngineHistory,
        failures: Counter[str],
        loop_lag: Callable[[float], float | None],
        abandoned: AbandonedLog,
    ) -> None:
        self._abandoned = abandoned
        self._engines = engines
        self._sampler = sampler
        self._device = device
        self._baselines = baselines
        self._past = past
        self._failures = failures
        self._loop_lag = loop_lag

    def case(self, exchange: Exchange, others: Sequence[Occupancy]) -> Case:
        """Return the case of a finished exchange; `others` are other requests at its engine."""
        timeline = exchange.timeline(self._loop_lag(exchange.accepted_at_s))
        device, engine = self._device(), self._engines.find(exchange.engine_name)
        at_send = in_flight_at(exchange.sent_at_s, others)
        process = None if engine is None else self._engines.process_of(engine, timeline.model)
        is_here = engine is None or engine.is_here(process) is not False
        host, gpu, gpu_indices = (
            self._sampled(exchange, engine, process, device) if is_here else UNSEEN
        )
        was_unloaded = (
            exchange.awaits_load if exchange.was_unloaded is None else exchange.was_unloaded
        )
        facts_at_request = {"slept": was_unloaded, "gpu_indices": gpu_indices}
        server, model = facts_at(engine, process, timeline.model, facts_at_request)
        activity = None if engine is None else _activity(exchange, engine, timeline)
        if server.slept and "llama-swap" in (server.through, server.kind):
            timeline = without_loading_lines(timeline)
        if server.kind == "ollama" and not counts_cached(server.version):
            timeline = without_cached(timeline)
        choices = exchange.meter.reply.choices if exchange.meter else 1
        if activity and choices == 1:  # each of several reads the prompt for itself
            timeline = with_counted_cached(timeline, activity)
        phases = split(
            timeline,
            choices=choices,
            early_head=server.kind == "llama-server",
            was_unloaded=bool(server.slept),
            alone=not at_send and _is_alone(others, activity),
            counted=counted_timings(activity) if activity else None,
        )
        looks = [] if engine is None else _looks(exchange, engine, phases)
        bounds = None if engine is None else _queue_bounds(exchange, engine, phases, looks)
        if engine is not None and bounds is not None:
            phases = without_prefill(phases)
            looks = _looks(exchange, engine, phases)
        neighbours = count_neighbours(at_send, phases, others)
        if others or looks:
            neighbours = _with_concurrency(
                neighbours, exchange, phases, others, looks, server.slots
            )
        tasks = partial(_tasks, exchange, engine)
        begun_phases = _begun_after(phases, exchange, bounds)
        if abandoned := self._abandoned.of(exchange, begun_phases, others, looks, tasks):
            neighbours = replace(neighbours, abandoned=abandoned)
        case = Case(
            timeline=timeline,
            phases=phases,
            prompt=exchange.prefix,
            prompt_parts=exchange.parts,
            repeat=exchange.repeat,
            neighbours=neighbours,
            host=host,
            gpu=gpu,
            server=server,
            activity=activity,
            model=model,
            device=device,
            envelope=expectation(server, model, device, timeline.tokens, neighbours),
            baseline=NO_BASELINE,
            history=NO_HISTORY,
        )
        case = replace(case, phases=with_inferred_load(case))
        past = self._past_of(case, exchange.judged_against)
        return _with_past(case, past, choices, bounds if case.phases.load_s is None else None)

    def _past_of(self, case: Case, judged_against: tuple[Envelope, Baseline] | None) -> Past:
        """Return history and baseline, and the expectation refined by them.

        `judged_against` is what a worker has judged the request against for its header; the record
        then says the same. If reading the past fails, the case is made without it.
        """
        try:
            history = self._past.of(case, self._idle(case))
            if judged_against is not None:
                envelope, baseline = judged_against
                as_configured = case.envelope.as_configured
                return replace(envelope, as_configured=as_configured), baseline, history
            # the baseline is kept as a share of what is expected by first principles
            baseline = self._baselines.find(replace(case, history=history))
            envelope = case.envelope if baseline is NO_BASELINE else refined(case, baseline)
        except Exception:  # noqa: BLE001 - see above
            self._failures["past"] += 1
            return case.envelope, case.baseline, case.history
        return envelope, baseline, history

    def _idle(self, case: Case) -> tuple[GpuSample, ...]:
        """Return the GPU samples from before the request."""
        if not case.device.gpus or case.server.local is False:
            return ()
        return self._sampler.gpu_window(self._past.since_s(case), case.timeline.accepted_at_s)

    def _sampled(
        self,
        exchange: Exchange,
        engine: Engine | None,
        process: ProcessFacts | None,
        device: DeviceFacts,
    ) -> Sampled:
        """Return host and GPU samples from the server's view, and the GPUs that it uses."""
        begin_s = exchange.accepted_at_s
        last_s = exchange.last_byte_at_s or exchange.ended_at_s or begin_s
        end_s = max(last_s, begin_s + MIN_SAMPLE_WINDOW_S)
        engine_port = None if engine is None else engine.port
        port = engine_port if process is None else process.port
        host = self._sampler.host_window(port, begin_s, end_s)
        gpu = self._sampler.gpu_window(begin_s, end_s)
        if gpu and process is not None and process.pid is not None:
            gpu = seen_from(gpu, {process.pid, *(child.pid for child in process.children)})
        return host, gpu, gpus_used(gpu, device, process.environment if process else {})


def _with_past(case: Case, past: Past, choices: int, queue: tuple[float, float] | None) -> Case:
    """Return the case with its past, and with the phases that follow from it."""
    envelope, baseline, history = past
    phases = case.phases
    prefill_tps = history.best_prefill_tps or envelope.expected_prefill_tps
    if phases.source == "estimate":
        phases = estimate(
            phases,
            case.timeline,
            choices=choices,
            prefill_tps=prefill_tps,
            decode_tps=baseline.decode_tps or envelope.expected_tps,
        )
    elif queue is not None:
        phases = with_queue(phases, case.timeline, *queue, prefill_tps=prefill_tps)
    if baseline is NO_BASELINE and history is NO_HISTORY and phases is case.phases:
        return case
    return replace(case, phases=phases, envelope=envelope, baseline=baseline, history=history)


def _looks(exchange: Exchange, engine: Engine, phases: Phases) -> Sequence[Look]:
    """Return the looks at the engine's slots or gauges during the request."""
    begin_s, end_s = exchange.sent_at_s, exchange.last_byte_at_s or exchange.ended_at_s
    if begin_s is None or end_s is None:
        return ()
    if engine.kind in GAUGED:
        looks = of_gauges(engine.activity.window(begin_s, end_s))
        return [look for look in looks if look.at_s >= begin_s - JUST_BEFORE_S]
    slot_looks = engine.slots.window(begin_s, end_s)
    return of_slots(slot_looks, phases.prefill_from_at_s, phases.decode_from_at_s)


def _tasks(exchange: Exchange, engine: Engine | None, since_s: float) -> Sequence[BusySlots]:
    """Return the looks at the engine's slots from a moment to the end of the request."""
    end_s = exchange.last_byte_at_s or exchange.ended_at_s
    return () if engine is None or end_s is None else engine.slots.window(since_s, end_s)


def _with_concurrency(
    guessed: Neighbours,
    exchange: Exchange,
    phases: Phases,
    others: Sequence[Occupancy],
    looks: Sequence[Look],
    slots: int | None,
) -> Neighbours:
    """Add which other requests were at the engine during this one's queue and prefill."""
    own_slots = exchange.meter.reply.choices_seen if exchange.meter else 1
    neighbours = with_looks(guessed, phases, looks, slots=slots, own_slots=own_slots)
    sent_s, begun_s = exchange.sent_at_s, phases.prefill_from_at_s
    first_s = phases.decode_from_at_s
    until_s = first_s if begun_s is None else begun_s
    if sent_s is None or until_s is None:
        return neighbours
    before = [look for look in looks if look.at_s <= until_s]
    neighbours = replace(
        neighbours, waiting=while_waiting((sent_s, until_s), others, before, slots)
    )
    if begun_s is None or first_s is None:
        return neighbours
    during = [look for look in looks if begun_s <= look.at_s <= first_s]
    at_engine = while_read((begun_s, first_s), others, during, slots=slots, own_slots=own_slots)
    return replace(neighbours, prefill=at_engine)


def _queue_bounds(
    exchange: Exchange, engine: Engine, phases: Phases, looks: Sequence[Look]
) -> tuple[float, float] | None:
    """Return lower and upper bound of the queue time, where only gauges or slots reveal it."""
    if phases.queue_s is not None or phases.source != "stream":
        return None
    sent_s, first_s = exchange.sent_at_s, phases.decode_from_at_s
    if sent_s is None or first_s is None:
        return None
    if engine.kind in GAUGED:
        before = [look for look in looks if look.at_s <= first_s and look.waiting is not None]
        return queue_bounds(sent_s, first_s, before)
    end_s = exchange.last_byte_at_s or exchange.ended_at_s or first_s
    return slots_bounds(sent_s, first_s, engine.slots.window(sent_s - BEFORE_S, end_s))


def _begun_after(phases: Phases, exchange: Exchange, bounds: tuple[float, float] | None) -> Phases:
    """Return the phases with prefill beginning after the least queue time, if that is known."""
    if bounds is None or exchange.sent_at_s is None:
        return phases
    return replace(phases, prefill_from_at_s=exchange.sent_at_s + bounds[0])


def _activity(exchange: Exchange, engine: Engine, timeline: Timeline) -> EngineActivity | None:
    """Return what the engine's counters gained around the request."""
    end_s = exchange.last_byte_at_s or exchange.ended_at_s
    if exchange.sent_at_s is None or end_s is None or engine.kind == "sglang":
        return None  # SGLang's gauges stand for some time after a request has ended
    return engine.activity.between(exchange.sent_at_s, end_s, timeline.first_token_at_s)


def _is_alone(others: Sequence[Occupancy], activity: EngineActivity | None) -> bool:
    """Return False if only the engine's counters show other requests.

    Those did not come through this proxy, so when they were there is not known.
    """
    return bool(others) or activity is None or activity.alone is not False
