"""The composition root: makes all parts from the settings and connects them.

Everything outside `/slowtok` goes to the relay. Read relay.py next.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.detectors.analysis.host_window import ram_read_bytes_per_s
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.engines.registry import Engine, Engines
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.history import EngineHistory
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peers import Peers, open_peers
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.inspection.gpu_status import gpu_status, gpus_not_visible
from slowtok.proxy.inspection.look import seen_engine
from slowtok.proxy.inspection.seen import Seen
from slowtok.proxy.observe.observer import Observer
from slowtok.proxy.observe.runs import Runs
from slowtok.proxy.outputs.events import Events
from slowtok.proxy.outputs.metrics.metrics import Metrics
from slowtok.proxy.outputs.metrics.snapshot import WINDOW_S, EngineNow, Now, gpus_now
from slowtok.proxy.outputs.record import known
from slowtok.proxy.outputs.record_ring import RecordRing
from slowtok.proxy.outputs.series import SeriesStore
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.runs.book import run_key
from slowtok.proxy.runs.ledger import newest_records
from slowtok.proxy.runtime.loop_lag import LoopLag
from slowtok.proxy.runtime.utc import utc_text
from slowtok.proxy.runtime.version import own_version
from slowtok.proxy.sampling.host.ram import BESIDE_OTHERS, RamBandwidth
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.server.access import AccessPolicy
from slowtok.proxy.server.connection_limit import ConnectionLimiter
from slowtok.proxy.server.edge import Edge, make_edge, make_relay
from slowtok.proxy.server.self_test import fast_path_works
from slowtok.proxy.server.server import Server
from slowtok.proxy.upstream.client import make_session
from slowtok.proxy.web.api import ApiPages, OwnCost
from slowtok.proxy.web.status import fit_status, host_now

IDLE_RATIO = 0.25  # of the cores busy: nearly all bandwidth is free; heuristic
IDLE_WINDOW_S = 10.0  # idle sampling writes every few seconds
OF_GPU = ("index", "name", "power_limit_w", "vram", "now")  # what changes, for /slowtok/events
STATUS_WINDOW_S = 30.0  # an older look at a GPU's memory is not what is so now


class Proxy:
    """All parts of a running proxy. `start` and `stop` bracket the life of its event loop.

    `first_pid` is slowtok's first process, where that is another than this one.
    """

    def __init__(
        self,
        settings: Settings,
        sinks: Mapping[str, Sink],
        log_event: Callable[..., None],
        *,
        first_pid: int | None = None,
    ) -> None:
        self.settings = settings
        self.version = own_version()  # now: a newer one may be installed while this one runs
        self.log_event = log_event
        self.lag = LoopLag()
        self.sampler = Sampler(
            own_pid=first_pid, on_failure=lambda why: log_event("sampling-down", why=why)
        )
        self.store = RecordRing(settings.keep_requests)
        self.runs = Runs(run_key(settings.state_path))
        self.kept = LearnedStore(settings.state_path / "learned.sqlite3")
        self.peers = open_peers(settings)
        self.baselines = Baselines(self.kept, peers=self.peers)
        self.metrics = Metrics()
        self.events = Events(self._sample)
        self.series = SeriesStore(settings.keep_requests)
        self._sinks: dict[str, Sink] = {
            "metrics": self.metrics,
            "samples": self.series,
            "events": self.events,
            "RAM bandwidth": self._note_ram_read,
            **sinks,
        }
        self._own_cost = OwnCost()
        self._broken: Counter[str] = Counter()  # what broke in showing, by its place
        self._device: tuple[object, DeviceFacts] | None = None  # as last told, put together
        self.limiter: ConnectionLimiter | None = None  # else the workers have one each
        self.server: Server | None = None  # in one process, or the pool of workers
        self.is_stopping = False  # each connection ends with the reply that it is at

    async def start(self, port: int) -> None:
        """Start everything that needs a running loop. `port` is where the proxy listens.

        Raises:
            UnusableLibraryError: it cannot serve with the libraries that are installed.
        """
        settings = self.settings
        use_fast_path = await fast_path_works(self.log_event)
        self.session = make_session(settings.connect_timeout_s, settings.max_head_bytes)
        self.engines = Engines(
            self.session,
            settings.upstreams(),
            sampler=self.sampler,
            cache_dir=settings.state_path / "models",
            own_port=port,
            log_event=self.log_event,
        )
        self.observer = Observer(
            engines=self.engines,
            device=self.device,
            sampler=self.sampler,
            baselines=self.baselines,
            past=EngineHistory(self.kept, self.baselines),
            loop_lag=self.lag.most_since,
            store=self.store,
            runs=self.runs,
            sinks=self._sinks,
            disabled=settings.disable,
        )
        self.relay = make_relay(
            relay_settings(settings),
            self.session,
            self.engines,
            self.observer,
            use_fast_path=use_fast_path,
        )
        self.ram = RamBandwidth(
            settings.state_path,
            given_bytes_per_s=settings.ram_bytes_per_s,
            is_quiet=lambda: self.observer.in_flight == 0,
            is_idle=self._cores_are_idle,
            on_busy=lambda number: self.log_event("ram-measured-busy", bytes_per_s=round(number)),
        )
        if self.peers is not None:
            self.peers.start()
        await self.sampler.start()
        self.engines.start(self.observer.is_asked, self.observer.note_slots)
        self.ram.start()
        self.lag.start()

        if settings.log_path is not None:
            self.runs.restore(await asyncio.to_thread(newest_records, settings.log_path))

    async def stop(self) -> None:
        """Stop everything, leaving no process and no task behind."""
        self.observer.conclude_all()
        self.lag.stop()
        await self.ram.stop()
        await self.engines.stop()
        await self.sampler.stop()
        await self.session.close()
        await asyncio.to_thread(self.kept.close)
        if self.peers is not None:
            await asyncio.to_thread(self.peers.close)

    def stop_pages(self) -> None:
        """Let whoever follows the events go: the proxy is about to stop."""
        self.is_stopping = True
        self.events.close()

    def device(self) -> DeviceFacts:
        """Return what is known of this machine."""
        sampler = self.sampler
        told = (sampler.device(), sampler.gpus_reason, sampler.failure, self.ram.bytes_per_s)
        if self._device is None or self._device[0] != told:
            device, reason, failure, ram_bytes_per_s = told
            facts = replace(
                device,
                gpus_reason=device.gpus_reason or reason,
                sampling_failure=failure,
                ram_bandwidth_bytes_per_s=ram_bytes_per_s,
                ram_bandwidth_source=self.ram.source,
            )
            self._device = (told, facts)
        return self._device[1]

    def _note_ram_read(
        self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]
    ) -> None:
        del diagnosis, record  # slow or not: it has read that much
        if (bytes_per_s := ram_read_bytes_per_s(case)) is not None:
            self.ram.note_read(bytes_per_s)

    def _cores_are_idle(self) -> bool:
        now_s = time.monotonic()
        samples = self.sampler.host_window(self._any_port(), now_s - IDLE_WINDOW_S, now_s)
        busy = [s.cpu_busy_cores for s in samples if s.cpu_busy_cores is not None]
        cores = next((s.cpu_cores for s in reversed(samples) if s.cpu_cores), None)
        return bool(busy) and cores is not None and busy[-1] <= IDLE_RATIO * cores

    def _any_port(self) -> int | None:
        return next((engine.port for engine in self.engines.all), None)

    def status(self) -> dict[str, Any]:
        """Return what the proxy sees and what it costs, for /slowtok/status."""
        device = self.device()
        now_s = time.monotonic()
        gpu_samples = self.sampler.gpu_window(now_s - STATUS_WINDOW_S, now_s)
        hosts = self.sampler.host_window(self._any_port(), now_s - STATUS_WINDOW_S, now_s)
        seen = Seen(device=device, gpu=gpu_samples, host=hosts)
        return {
            "version": self.version,
            "listen": self.settings.listen,
            "state_dir": str(self.settings.state_path.absolute()),
            "log": self._log_name(),
            "engines": [self._engine_status(engine, seen) for engine in self.engines.all],
            "looked_at": self.engines.searched_at,
            "workers": self.server.workers() if self.server else [],
            "running": self.observer.running(),
            "gpus": gpu_status(device, gpu_samples),
            "machine": {k: v for k, v in asdict(device).items() if k != "gpus"}
            | ({"ram_bandwidth_how": BESIDE_OTHERS} if self.ram.is_beside_others else {}),
            "host": host_now(hosts),
            "not_visible": [
                *gpus_not_visible(device, gpu_samples),
                *self.sampler.not_visible(),
                *_ram_not_visible(self.ram),
                *_learned_not_kept(self.kept.failure),
                *_peers_not_visible(self.peers),
            ],
            "baselines": self.baselines.summary(),
            "baselines_by_day": self.baselines.by_day(),
            "shared_baselines": self.peers.status() if self.peers else None,
            "overhead": {
                "proxy": self._own_cost.summary(),
                "loop_lag": self._loop_lag(),
                "held": self.server.held if self.server else self.relay.held.summary(),
                "sampling": self.sampler.status(),
                "diagnose_ms_per_request": self._diagnose_ms(),
            },
            "counts": {
                "requests": self.observer.requests,
                "in_flight": self.observer.in_flight,
                "connections_refused": self.server.refused if self.server else 0,
                "failures": self._failures(),
                "log_lines_lost": self._log_lines_lost(),
                "baseline_errors": self.baselines.errors,
            },
        }

    def now(self) -> Now:
        """Return what is so at this moment, for /slowtok/metrics."""
        now_s = time.monotonic()
        device, sampling = self.device(), self.sampler.status()
        hosts = self.sampler.host_window(self._any_port(), now_s - WINDOW_S, now_s)
        return Now(
            version=self.version,
            in_flight=self.observer.in_flight,
            engines=tuple(
                EngineNow(name=e.name, kind=e.last_kind, up=e.identity is not None)
                for e in self.engines.all
            ),
            gpus=gpus_now(device, self.sampler.gpu_window(now_s - WINDOW_S, now_s)),
            host=hosts[-1] if hosts else None,
            loop_lag_ms=self._loop_lag(),
            diagnoses=self.observer.diagnosed,
            diagnosis_s_total=self.observer.diagnose_s,
            sampling_up=sampling["alive"],
            sampling_cpu_ratio=sampling["cpu_ratio"],
            sampling_restarts=sampling["restarts"],
            lines_lost=self._log_lines_lost(),
            connections_refused=self.server.refused if self.server else 0,
            listeners=self.events.listeners,
            events_lost=self.events.lost,
            failures=self._failures(),
        )

    def _failures(self) -> dict[str, int]:
        """What broke in observing, by its place."""
        beside = {
            "events": self.events.failed,
            "shared baselines": self.peers.failures if self.peers else 0,
            "scraping": sum(engine.scrape_failures for engine in self.engines.all),
        }
        beside |= self._broken
        return {**self.observer.failures, **{name: n for name, n in beside.items() if n}}

    def _sample(self) -> dict[str, Any]:
        """Return how the machine is now, in the status's own words, for /slowtok/events."""
        now_s = time.monotonic()
        gpus = gpu_status(self.device(), self.sampler.gpu_window(now_s - WINDOW_S, now_s))
        hosts = self.sampler.host_window(self._any_port(), now_s - WINDOW_S, now_s)
        return {
            "in_flight": self.observer.in_flight,
            "gpus": [{name: gpu[name] for name in OF_GPU if name in gpu} for gpu in gpus],
            "host": host_now(hosts),
            "loop_lag": self._loop_lag(),
        }

    def _loop_lag(self) -> Mapping[str, float | None]:
        """Return how late the event loop is that carries tokens; of several the latest."""
        return (self.server.loop_lag if self.server else None) or self.lag.summary()

    def _engine_status(self, engine: Engine, seen: Seen) -> dict[str, Any]:
        server, _ = self.engines.facts(engine.name, None)
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
            looked = seen_engine(self.engines, engine, self.sampler, from_s, [])
            return fit_status(seen, looked) if looked.answers else []
        except Exception:  # noqa: BLE001 - it must not take the rest of the status along
            self._broken["fit"] += 1
            return None

    def _log_name(self) -> str:
        path = self.settings.log_path
        return "-" if path is None else str(path.absolute())

    def _log_lines_lost(self) -> int:
        """Lines that a full disk or a slow reader cost."""
        writers = (getattr(sink, "writer", None) for sink in self._sinks.values())
        return sum(writer.dropped + writer.failed for writer in writers if writer)

    def _diagnose_ms(self) -> float | None:
        requests = self.observer.diagnosed
        return round(self.observer.diagnose_s / requests * 1000, 3) if requests else None


def make_app(proxy: Proxy, *, own_port: Callable[[], int]) -> Edge:
    """Return all that answers clients: own pages, and the relay for all the rest."""

    async def life(_app: web.Application) -> AsyncIterator[None]:
        await proxy.start(own_port())
        yield
        await proxy.stop()

    def relay(request: ClientRequest) -> Awaitable[ClientReply]:
        return proxy.relay.handle(request)

    def publish_all() -> None:
        proxy.observer.publish_all()

    async def close_events(_: web.Application) -> None:
        proxy.events.close()

    api = ApiPages(
        proxy.store,
        proxy.status,
        runs=_RunsSeen(proxy),
        events=proxy.events,
        metrics=proxy.metrics,
        now=proxy.now,
        series=proxy.series,
        publish_all=publish_all,
    )
    edge = make_edge(
        AccessPolicy(relay_settings(proxy.settings), lambda: proxy.limiter),
        relay,
        api.routes(),
        is_stopping=lambda: proxy.is_stopping,
    )
    edge.pages.cleanup_ctx.append(life)
    edge.pages.on_shutdown.append(close_events)
    return edge


class _RunsSeen:
    """The runs of a proxy, for its pages."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def newest_first(self, limit: int) -> list[dict[str, Any]]:
        return self._proxy.runs.newest_first(self._proxy.observer.live, limit)

    def one(self, wanted: str) -> dict[str, Any] | None:
        return self._proxy.runs.one(wanted, self._proxy.observer.live)


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
