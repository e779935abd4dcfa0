"""Everything that is known about one exchange, put together as a case."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from slowtok.detectors.case import Case, EngineTimings, Neighbours, Phases, Timeline
from slowtok.detectors.engine import EngineActivity
from slowtok.detectors.expectation import with_baseline, with_expectation
from slowtok.detectors.machine import DeviceFacts, GpuSample, HostSample
from slowtok.proxy.baselines import Baselines
from slowtok.proxy.engines import Engines
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.gpus_used import gpus_used, seen_from
from slowtok.proxy.history import Past
from slowtok.proxy.neighbours import Stay, count_neighbours, in_flight_at, with_slots
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.stream.phases import estimate, split

MIN_SAMPLE_WINDOW_S = 1.0
"""A request may be shorter than the period of idle samples."""


class Evidence:
    """Asks everyone who knows something about an exchange."""

    def __init__(
        self,
        *,
        engines: Engines,
        sampler: Sampler,
        device: Callable[[], DeviceFacts],
        baselines: Baselines,
        past: Past,
        failures: Counter[str],
        loop_lag: Callable[[float], float | None],
    ) -> None:
        self._engines = engines
        self._sampler = sampler
        self._device = device
        self._baselines = baselines
        self._past = past
        self._failures = failures
        self._loop_lag = loop_lag

    def case(self, exchange: Exchange, stays: list[Stay]) -> Case:
        """Return the case of a finished exchange; `stays` are other requests' at that time."""
        timeline = exchange.timeline(self._loop_lag(exchange.accepted_at_s))
        device = self._device()
        host, gpu, used = self._sampled(exchange, device)
        server, model = self._engines.facts(
            exchange.engine_name, timeline.model, slept=exchange.slept, gpu_indices=used
        )
        activity = self._engines.activity(
            exchange.engine_name,
            exchange.sent_at_s,
            exchange.last_byte_at_s or exchange.ended_at_s,
            timeline.first_token_at_s,
        )
        choices = exchange.meter.reply.choices if exchange.meter else 1
        if choices == 1:  # each of several reads the prompt for itself
            timeline = _with_cached(timeline, activity)
        phases = split(
            timeline,
            choices=choices,
            early_head=server.kind == "llama-server",
            slept=bool(server.slept),
            alone=_alone(exchange, stays, activity),
            counted=_counted(activity),
        )
        neighbours = self._neighbours(exchange, phases, stays)
        case = Case(
            timeline=timeline,
            phases=phases,
            prompt=exchange.prefix,
            neighbours=neighbours,
            server=server,
            activity=activity,
            model=model,
            device=device,
            host=host,
            gpu=gpu,
        )
        case = self._with_past(with_expectation(case))  # the baseline is kept as a share of that
        return _with_estimate(case, exchange)

    def _with_past(self, case: Case) -> Case:
        """Add what went before; a past that cannot be read costs only itself."""
        try:
            baseline, history = self._baselines.find(case), self._past.of(case, self._idle(case))
            return replace(with_baseline(case, baseline), history=history)
        except Exception:  # noqa: BLE001 - see above
            self._failures["past"] += 1
            return case

    def _idle(self, case: Case) -> tuple[GpuSample, ...]:
        """Return the GPUs' samples from before the request."""
        if case.server.local is False:
            return ()
        return self._sampler.gpu_window(self._past.since_s(case), case.timeline.accepted_at_s)

    def _sampled(
        self, exchange: Exchange, device: DeviceFacts
    ) -> tuple[tuple[HostSample, ...], tuple[GpuSample, ...], tuple[int, ...] | None]:
        """Return the host's and the GPUs' samples as the server sees them, and the GPUs it uses.

        There are none of this machine for a remote engine.
        """
        engine = self._engines.find(exchange.engine_name)
        if engine is not None and engine.local is False:
            return (), (), None
        begin_s = exchange.accepted_at_s
        last_s = exchange.last_byte_at_s or exchange.ended_at_s or begin_s
        end_s = max(last_s, begin_s + MIN_SAMPLE_WINDOW_S)
        port = None if engine is None else engine.port
        gpu = self._sampler.gpu_window(begin_s, end_s)
        process = None if port is None else self._sampler.process(port)
        if process is not None and process.pid is not None:
            gpu = seen_from(gpu, {process.pid, *(child.pid for child in process.children)})
        used = gpus_used(gpu, device, process.environment if process else {})
        return self._sampler.host_window(port, begin_s, end_s), gpu, used

    def _neighbours(self, exchange: Exchange, phases: Phases, stays: Iterable[Stay]) -> Neighbours:
        name = exchange.engine_name
        guessed = count_neighbours(name, exchange.sent_at_s, phases, stays)
        engine = self._engines.find(name)
        if engine is None:
            return guessed
        mine = exchange.meter.reply.choices_seen if exchange.meter else 1
        return with_slots(guessed, phases, engine.slots, slots=engine.probe.slots, mine=mine)


def _with_estimate(case: Case, exchange: Exchange) -> Case:
    """Split the time of a whole reply whose engine tells none as is to be expected."""
    estimated = estimate(
        case.phases,
        case.timeline,
        choices=exchange.meter.reply.choices if exchange.meter else 1,
        prefill_tps=case.history.best_prefill_tps or case.envelope.expected_prefill_tps,
        decode_tps=case.baseline.decode_tps or case.envelope.expected_tps,
    )
    return case if estimated is case.phases else replace(case, phases=estimated)


def _with_cached(timeline: Timeline, activity: EngineActivity | None) -> Timeline:
    """Add the cached tokens that the engine counted and did not tell, where it was alone there."""
    tokens = timeline.tokens
    if tokens.prompt is None or tokens.cached is not None or not (activity and activity.alone):
        return timeline
    return replace(timeline, tokens=replace(tokens, cached=activity.cached_tokens))


def _alone(exchange: Exchange, stays: list[Stay], activity: EngineActivity | None) -> bool:
    """Say whether nobody is known to have been at the engine when the request was sent.

    Others that the engine counted and that did not come through here were there at a time that
    nobody knows.
    """
    name = exchange.engine_name
    if in_flight_at(name, exchange.sent_at_s or 0.0, stays):
        return False
    met = any(stay.engine_name == name for stay in stays)
    return met or activity is None or activity.alone is not False


def _counted(activity: EngineActivity | None) -> EngineTimings | None:
    """Return the request's own timings, where the engine's counters counted it and no other."""
    if activity is None or not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s, prefill_s=activity.prefill_s, decode_s=activity.decode_s
    )
