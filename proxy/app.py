"""The composition root: makes all parts from the settings and connects them.

Everything outside `/slowtok` goes to the relay. Read relay.py next.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.detectors.analysis.host_window import ram_read_bytes_per_s
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.case.machine import DeviceFacts
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.history.baselines import Baselines
from slowtok.proxy.history.history import EngineHistory
from slowtok.proxy.history.learned_store import LearnedStore
from slowtok.proxy.history.peers.peers import open_peers
from slowtok.proxy.http.request import ClientRequest
from slowtok.proxy.http.response import ClientReply
from slowtok.proxy.observe.observer import Observer
from slowtok.proxy.observe.runs import Runs
from slowtok.proxy.outputs.events import Events
from slowtok.proxy.outputs.metrics.metrics import Metrics
from slowtok.proxy.outputs.record_ring import RecordRing
from slowtok.proxy.outputs.series import SeriesStore
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.relay.settings import relay_settings
from slowtok.proxy.runs.ledger import newest_records
from slowtok.proxy.runs.run_register import run_key
from slowtok.proxy.runtime.loop_lag import LoopLag
from slowtok.proxy.runtime.version import own_version
from slowtok.proxy.sampling.host.ram import RamBandwidth
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.server.access import AccessPolicy
from slowtok.proxy.server.connection_limit import ConnectionLimiter
from slowtok.proxy.server.edge import Edge, make_edge, make_relay
from slowtok.proxy.server.self_test import fast_path_works
from slowtok.proxy.server.server import Server
from slowtok.proxy.upstream.client import make_session
from slowtok.proxy.web.api import ApiPages
from slowtok.proxy.web.status import ProxyStatus

IDLE_RATIO = 0.25  # of the cores busy: nearly all bandwidth is free; heuristic
IDLE_WINDOW_S = 10.0  # idle sampling writes every few seconds


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
        self._relays_here = first_pid is None
        self.sampler = Sampler(
            own_pid=first_pid, on_failure=lambda why: log_event("sampling-down", why=why)
        )
        self.records = RecordRing(settings.keep_requests)
        self.runs = Runs(run_key(settings.state_path))
        self.learned = LearnedStore(settings.state_path / "learned.sqlite3")
        self.peers = open_peers(settings)
        self.baselines = Baselines(self.learned, peers=self.peers)
        self.metrics = Metrics()
        self.status = ProxyStatus(self)
        self.events = Events(self.status.sample)
        self.series = SeriesStore(settings.keep_requests)
        self.sinks: dict[str, Sink] = {
            "metrics": self.metrics,
            "samples": self.series,
            "events": self.events,
            "RAM bandwidth": self._note_ram_read,
            **sinks,
        }
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
            past=EngineHistory(self.learned, self.baselines),
            loop_lag=self.lag.most_since if self._relays_here else lambda _since_s: None,
            store=self.records,
            runs=self.runs,
            sinks=self.sinks,
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
        await asyncio.to_thread(self.learned.close)
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
        samples = self.sampler.host_window(self.any_port(), now_s - IDLE_WINDOW_S, now_s)
        busy = [s.cpu_busy_cores for s in samples if s.cpu_busy_cores is not None]
        cores = next((s.cpu_cores for s in reversed(samples) if s.cpu_cores), None)
        return bool(busy) and cores is not None and busy[-1] <= IDLE_RATIO * cores

    def any_port(self) -> int | None:
        """Return the port of an engine, of whose process the host's samples tell."""
        return next((engine.port for engine in self.engines.all), None)


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
        proxy.records,
        proxy.status.as_json,
        runs=_RunsSeen(proxy),
        events=proxy.events,
        metrics=proxy.metrics,
        now=proxy.status.snapshot,
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
