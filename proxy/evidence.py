"""Everything that is known about one exchange, put together as a case."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from slowtok.detectors.case import (
    Baseline,
    Case,
    EngineTimings,
    Envelope,
    History,
    Neighbours,
    Phases,
    Timeline,
)
from slowtok.detectors.engine import EngineActivity
from slowtok.detectors.expectation import expectation, refined
from slowtok.detectors.machine import DeviceFacts, GpuSample, HostSample
from slowtok.proxy.baselines import Baselines
from slowtok.proxy.engines import Engine, Engines
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.gpus_used import gpus_used, seen_from
from slowtok.proxy.history import Past
from slowtok.proxy.neighbours import Stay, count_neighbours, in_flight_at, met_at, with_slots
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.stream.phases import estimate, split

MIN_SAMPLE_WINDOW_S = 1.0
"""A request may be shorter than the period of idle samples."""

NO_BASELINE = Baseline()
NO_HISTORY = History()


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
        device, engine = self._device(), self._engines.find(exchange.engine_name)
        met = met_at(exchange.engine_name, stays)
        at_send = in_flight_at(exchange.sent_at_s, met)
        host, gpu, used = self._sampled(exchange, engine, device)
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
            alone=not at_send and _is_alone(met, activity),
            counted=_counted(activity),
        )
        guessed = count_neighbours(at_send, phases, met)
        neighbours = guessed if engine is None else _by_slots(guessed, exchange, phases, engine)
        make = partial(
            Case,
            timeline=timeline,
            prompt=exchange.prefix,
            neighbours=neighbours,
            server=server,
            activity=activity,
            model=model,
            device=device,
            host=host,
            gpu=gpu,
        )
        first = expectation(server, model, device, timeline.tokens, neighbours)
        before = make(phases=phases, envelope=first, baseline=NO_BASELINE, history=NO_HISTORY)
        envelope, baseline, history = self._past_of(before)
        phases = estimate(
            phases,
            timeline,
            choices=choices,
            prefill_tps=history.best_prefill_tps or envelope.expected_prefill_tps,
            decode_tps=baseline.decode_tps or envelope.expected_tps,
        )
        return make(phases=phases, envelope=envelope, baseline=baseline, history=history)

    def _past_of(self, case: Case) -> tuple[Envelope, Baseline, History]:
        """Return what went before, and what is expected by it.

        A past that cannot be read costs only itself.
        """
        try:
            # the baseline is kept as a share of what is expected by first principles
            baseline, history = self._baselines.find(case), self._past.of(case, self._idle(case))
            return refined(case, baseline), baseline, history
        except Exception:  # noqa: BLE001 - see above
            self._failures["past"] += 1
            return case.envelope, case.baseline, case.history

    def _idle(self, case: Case) -> tuple[GpuSample, ...]:
        """Return the GPUs' samples from before the request."""
        if case.server.local is False:
            return ()
        return self._sampler.gpu_window(self._past.since_s(case), case.timeline.accepted_at_s)

    def _sampled(
        self, exchange: Exchange, engine: Engine | None, device: DeviceFacts
    ) -> tuple[tuple[HostSample, ...], tuple[GpuSample, ...], tuple[int, ...] | None]:
        """Return the host's and the GPUs' samples as the server sees them, and the GPUs it uses.

        There are none of this machine for a remote engine.
        """
        if engine is not None and engine.local is False:
            return (), (), None
        begin_s = exchange.accepted_at_s
        last_s = exchange.last_byte_at_s or exchange.ended_at_s or begin_s
        end_s = max(last_s, begin_s + MIN_SAMPLE_WINDOW_S)
        port = None if engine is None else engine.port
        gpu = self._sampler.gpu_window(begin_s, end_s)
        process = None if port is None else self._sampler.process(port)
        if gpu and process is not None and process.pid is not None:
            gpu = seen_from(gpu, {process.pid, *(child.pid for child in process.children)})
        used = gpus_used(gpu, device, process.environment if process else {})
        return self._sampler.host_window(port, begin_s, end_s), gpu, used


def _by_slots(
    guessed: Neighbours, exchange: Exchange, phases: Phases, engine: Engine
) -> Neighbours:
    mine = exchange.meter.reply.choices_seen if exchange.meter else 1
    return with_slots(guessed, phases, engine.slots, slots=engine.probe.slots, mine=mine)


def _with_cached(timeline: Timeline, activity: EngineActivity | None) -> Timeline:
    """Add the cached tokens that the engine counted and did not tell, where it was alone there."""
    tokens = timeline.tokens
    if tokens.prompt is None or tokens.cached is not None or not (activity and activity.alone):
        return timeline
    return replace(timeline, tokens=replace(tokens, cached=activity.cached_tokens))


def _is_alone(met: Sequence[Stay], activity: EngineActivity | None) -> bool:
    """Say whether nobody unseen is known to have been at the engine.

    Others that the engine counted and that did not come through here were there at a time that
    nobody knows.
    """
    return bool(met) or activity is None or activity.alone is not False


def _counted(activity: EngineActivity | None) -> EngineTimings | None:
    """Return the request's own timings, where the engine's counters counted it and no other."""
    if activity is None or not activity.alone or activity.decode_s is None:
        return None
    return EngineTimings(
        queue_s=activity.queue_s, prefill_s=activity.prefill_s, decode_s=activity.decode_s
    )
