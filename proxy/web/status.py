"""What slowtok shows of itself and of the machine at this moment.

For `/slowtok/status`, for the gauges of `/slowtok/metrics`, and for the samples that
`/slowtok/events` sends.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from slowtok.config.settings import Settings
from slowtok.detectors.analysis.gpu.vram import newest_split
from slowtok.detectors.case.machine import DeviceFacts, GpuSample, HostSample
from slowtok.detectors.expectation.footprint import context_that_fits, footprint, reserved_tokens
from slowtok.proxy.engines.registry import Engine, Engines
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peers import Peers
from slowtok.proxy.inspection.gpu_status import gpu_status, gpus_not_visible
from slowtok.proxy.inspection.look import seen_engine
from slowtok.proxy.inspection.memory import check_memory
from slowtok.proxy.inspection.seen import EngineSeen, Seen, ServingSeen
from slowtok.proxy.observe.observer import Observer
from slowtok.proxy.outputs.events import Events
from slowtok.proxy.outputs.metrics.snapshot import WINDOW_S, EngineState, Snapshot, gpus_now
from slowtok.proxy.outputs.record import known
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.relay.relay import Relay
from slowtok.proxy.runtime.loop_lag import LoopLag
from slowtok.proxy.runtime.utc import utc_text
from slowtok.proxy.sampling.host.ram import BESIDE_OTHERS, RamBandwidth
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.server.server import Server
from slowtok.proxy.web.api import OwnCost

OF_GPU = ("index", "name", "power_limit_w", "vram", "now")  # what changes, for /slowtok/events
STATUS_WINDOW_S = 30.0  # an older look at a GPU's memory is not what is so now
OF_HOST = (
    "cpu_cores",
    "cpu_busy_cores",
    "cpu_mhz",
    "available_bytes",
    "server_cpu_cores",
    "server_run_delay_cores",
    "server_throttled_ratio",
    "psi_cpu_some_ratio",
    "psi_io_full_ratio",
    "psi_memory_full_ratio",
)


class ProxyParts(Protocol):
    """The parts of a running proxy that are shown."""

    settings: Settings
    version: str | None
    sampler: Sampler
    engines: Engines
    observer: Observer
    relay: Relay
    baselines: Baselines
    learned: LearnedStore
    peers: Peers | None
    ram: RamBandwidth
    lag: LoopLag
    events: Events
    sinks: dict[str, Sink]
    server: Server | None

    def device(self) -> DeviceFacts:
        """Return what is known of this machine."""
        ...

    def any_port(self) -> int | None:
        """Return the port of an engine, of whose process the host's samples tell."""
        ...


class ProxyStatus:
    """Puts together what is shown of a running proxy."""

    def __init__(self, proxy: ProxyParts) -> None:
        self._proxy = proxy
        self._own_cost = OwnCost()
        self._broken: Counter[str] = Counter()  # what broke in showing, by its place

    def as_json(self) -> dict[str, Any]:
        """Return what the proxy sees and what it costs, for /slowtok/status."""
        proxy, device, now_s = self._proxy, self._proxy.device(), time.monotonic()
        gpu_samples = proxy.sampler.gpu_window(now_s - STATUS_WINDOW_S, now_s)
        hosts = self._hosts(now_s - STATUS_WINDOW_S, now_s)
        seen = Seen(device=device, gpu=gpu_samples, host=hosts)
        return {
            "version": proxy.version,
            "listen": proxy.settings.listen,
            "state_dir": str(proxy.settings.state_path.absolute()),
            "log": self._log_name(),
            "engines": [self._engine_status(engine, seen) for engine in proxy.engines.all],
            "looked_at": proxy.engines.searched_at,
            "workers": proxy.server.workers() if proxy.server else [],
            "running": proxy.observer.running(),
            "gpus": gpu_status(device, gpu_samples),
            "machine": {k: v for k, v in asdict(device).items() if k != "gpus"}
            | ({"ram_bandwidth_how": BESIDE_OTHERS} if proxy.ram.is_beside_others else {}),
            "host": host_now(hosts),
            "not_visible": [
                *gpus_not_visible(device, gpu_samples),
                *proxy.sampler.not_visible(),
                *_ram_not_visible(proxy.ram),
                *_learned_not_kept(proxy.learned.failure),
                *_peers_not_visible(proxy.peers),
            ],
            "baselines": proxy.baselines.summary(),
            "baselines_by_day": proxy.baselines.by_day(),
            "shared_baselines": proxy.peers.status() if proxy.peers else None,
            "overhead": {
                "proxy": self._own_cost.summary(),
                "loop_lag": self._loop_lag(),
                "held": proxy.server.held if proxy.server else proxy.relay.memory_budget.summary(),
                "sampling": proxy.sampler.status(),
                "diagnose_ms_per_request": self._diagnose_ms(),
            },
            "counts": {
                "requests": proxy.observer.requests,
                "in_flight": proxy.observer.in_flight,
                "connections_refused": proxy.server.refused if proxy.server else 0,
                "failures": self._failures(),
                "log_lines_lost": self._log_lines_lost(),
                "baseline_errors": proxy.baselines.errors,
            },
        }

    def snapshot(self) -> Snapshot:
        """Return what is so at this moment, for /slowtok/metrics."""
        proxy, device, now_s = self._proxy, self._proxy.device(), time.monotonic()
        sampling = proxy.sampler.status()
        hosts = self._hosts(now_s - WINDOW_S, now_s)
        return Snapshot(
            version=proxy.version,
            in_flight=proxy.observer.in_flight,
            engines=tuple(
                EngineState(name=e.name, kind=e.last_kind, up=e.identity is not None)
                for e in proxy.engines.all
            ),
            gpus=gpus_now(device, proxy.sampler.gpu_window(now_s - WINDOW_S, now_s)),
            host=hosts[-1] if hosts else None,
            loop_lag_ms=self._loop_lag(),
            diagnoses=proxy.observer.diagnosed,
            diagnosis_s_total=proxy.observer.diagnose_s,
            sampling_up=sampling["alive"],
            sampling_cpu_ratio=sampling["cpu_ratio"],
            sampling_restarts=sampling["restarts"],
            lines_lost=self._log_lines_lost(),
            connections_refused=proxy.server.refused if proxy.server else 0,
            listeners=proxy.events.listeners,
            events_lost=proxy.events.lost,
            failures=self._failures(),
        )

    def _failures(self) -> dict[str, int]:
        """What broke in observing, by its place."""
        beside = {
            "events": self._proxy.events.failed,
            "shared baselines": self._proxy.peers.failures if self._proxy.peers else 0,
            "scraping": sum(engine.scrape_failures for engine in self._proxy.engines.all),
        }
        beside |= self._broken
        return {**self._proxy.observer.failures, **{name: n for name, n in beside.items() if n}}

    def sample(self) -> dict[str, Any]:
        """Return how the machine is now, in the status's own words, for /slowtok/events."""
        proxy, now_s = self._proxy, time.monotonic()
        samples = proxy.sampler.gpu_window(now_s - WINDOW_S, now_s)
        gpus = gpu_status(proxy.device(), samples)
        return {
            "in_flight": proxy.observer.in_flight,
            "gpus": [{name: gpu[name] for name in OF_GPU if name in gpu} for gpu in gpus],
            "host": host_now(self._hosts(now_s - WINDOW_S, now_s)),
            "loop_lag": self._loop_lag(),
        }

    def _hosts(self, from_s: float, to_s: float) -> tuple[HostSample, ...]:
        return self._proxy.sampler.host_window(self._proxy.any_port(), from_s, to_s)

    def _loop_lag(self) -> Mapping[str, float | None]:
        """Return how late the event loop is that carries tokens; of several the latest."""
        server = self._proxy.server
        return (server.loop_lag if server else None) or self._proxy.lag.summary()

    def _engine_status(self, engine: Engine, seen: Seen) -> dict[str, Any]:
        server, _ = self._proxy.engines.facts(engine.name, None)
        return {
            **known(asdict(server)),
            "answers": engine.identity is not None,
            **known({"gone_since": utc_text(engine.lost_unix_s)}),
            "models": [known(asdict(facts)) for facts in engine.models.values()],
            **known({"fit": self._fit(engine, seen)}),
        }

    def _fit(self, engine: Engine, seen: Seen) -> list[dict[str, Any]] | None:
        """Return whether its models fit; None where working that out broke."""
        from_s = time.monotonic() - STATUS_WINDOW_S
        try:
            looked = seen_engine(self._proxy.engines, engine, self._proxy.sampler, from_s, [])
            return fit_status(seen, looked) if looked.answers else []
        except Exception:  # noqa: BLE001 - it must not take the rest of the status along
            self._broken["fit"] += 1
            return None

    def _log_name(self) -> str:
        path = self._proxy.settings.log_path
        return "-" if path is None else str(path.absolute())

    def _log_lines_lost(self) -> int:
        """Lines that a full disk or a slow reader cost."""
        writers = (getattr(sink, "writer", None) for sink in self._proxy.sinks.values())
        return sum(writer.dropped + writer.failed for writer in writers if writer)

    def _diagnose_ms(self) -> float | None:
        requests = self._proxy.observer.diagnosed
        return round(self._proxy.observer.diagnose_s / requests * 1000, 3) if requests else None


def host_now(samples: Sequence[HostSample]) -> dict[str, Any]:
    """Return the newest value of each reading; empty where there is no sample."""
    rows = [asdict(sample) for sample in reversed(samples[-3:])]
    newest = {name: next((r[name] for r in rows if r[name] is not None), None) for name in OF_HOST}
    return {name: value for name, value in newest.items() if value is not None}


def _ram_not_visible(ram: RamBandwidth) -> list[dict[str, str]]:
    if ram.is_beside_others:
        why = f"{BESIDE_OTHERS}; measured again once they rest"
        return [{"fact": "RAM bandwidth of a quiet machine", "why": why}]
    if ram.bytes_per_s is not None:
        return []
    why = ram.failure or "not measured yet; it waits for a quiet second (--ram-bandwidth gives it)"
    return [{"fact": "RAM bandwidth", "why": why}]


def _learned_not_kept(failure: str | None) -> list[dict[str, str]]:
    if failure is None:
        return []
    return [{"fact": "what was learned before", "why": f"{failure}; it is kept in memory only"}]


def _peers_not_visible(peers: Peers | None) -> list[dict[str, str]]:
    if peers is None or peers.failure is None:
        return []
    why = f"{peers.failure}; what this machine learned itself is used and kept, and sent later"
    return [{"fact": "what other machines with the same card gave", "why": why}]


# Whether loaded models fit, for /slowtok/status. Pure.
#
# It is said with the doctor's words and numbers: without traffic there is no case
# that a detector could judge, and the doctor's check needs none.


def fit_status(seen: Seen, engine: EngineSeen) -> list[dict[str, Any]]:
    """Return an entry for each model that an engine has in memory.

    `state` is `ok`, `note` (as it was asked for), `warn` (it costs speed) or `unknown`; `said` and
    `advice` are sentences; the rest are numbers, those that are known. `most_context_tokens` is
    the context that would fit for sure, over all slots, with nobody else on the GPUs.
    """
    return [_entry(seen, engine, serving) for serving in engine.serving]


def _entry(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> dict[str, Any]:
    alone = replace(engine, serving=(serving,))
    checks = check_memory(replace(seen, engines=(alone,)))
    check = next((check for check in checks if check.name == "fit"), None)
    entry = {"model": serving.label, "most_context_tokens": _most_context(seen, engine, serving)}
    if check is None:  # an engine elsewhere: its memory is not seen
        need = footprint(serving.model, serving.server)
        found: dict[str, Any] = known(
            entry | {"state": "unknown", "weights_bytes": need.weights_bytes if need else None}
        )
        return found
    told = {"state": check.state, "said": check.said, "advice": check.advice}
    shown: dict[str, Any] = known(entry | told | dict(check.numbers))
    return shown


def _most_context(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> int | None:
    usable = sum(_usable_bytes(seen, engine, serving))
    if not usable or reserved_tokens(serving.server) is None:
        return None
    return context_that_fits(serving.model, serving.server, usable)


def _usable_bytes(seen: Seen, engine: EngineSeen, serving: ServingSeen) -> Iterator[int]:
    for gpu in seen.gpus_of(serving.server):
        samples: list[GpuSample] = [s for s in engine.gpu if s.index == gpu.index]
        room = newest_split(samples)
        if room is not None and not gpu.unified_memory:
            yield room.usable_bytes
