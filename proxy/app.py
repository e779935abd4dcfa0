"""What exists and how it hangs together: a table of parts, and the routes.

Everything outside `/slowtok` goes to the relay. Read relay.py next.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web

from slowtok.config.settings import Settings
from slowtok.detectors.machine import DeviceFacts
from slowtok.proxy import api_key, guard
from slowtok.proxy.api import Api, OwnCost
from slowtok.proxy.baselines import Baselines
from slowtok.proxy.door import Door
from slowtok.proxy.engines import Engine, Engines
from slowtok.proxy.gpu_status import gpu_status, gpus_not_visible
from slowtok.proxy.headers import allow_page
from slowtok.proxy.history import Past
from slowtok.proxy.host_status import host_now
from slowtok.proxy.lag import LoopLag
from slowtok.proxy.observer import Observer, Sink
from slowtok.proxy.outputs.errors import error_response
from slowtok.proxy.outputs.events import Events
from slowtok.proxy.outputs.metrics import Metrics
from slowtok.proxy.outputs.now import WINDOW_S, EngineNow, Now, gpus_now
from slowtok.proxy.outputs.record import known
from slowtok.proxy.outputs.series_store import SeriesStore
from slowtok.proxy.outputs.store import Store
from slowtok.proxy.past.kept import Kept
from slowtok.proxy.ram import RamBandwidth
from slowtok.proxy.relay import PASSED, Relay
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.upstream import make_session
from slowtok.proxy.version import own_version

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
IDLE_RATIO = 0.25  # of the cores busy: nearly all bandwidth is free; no published source
IDLE_WINDOW_S = 10.0  # idle sampling writes every few seconds
OF_GPU = ("index", "name", "power_limit_w", "vram", "now")  # what changes, for /slowtok/events
STATUS_WINDOW_S = 30.0  # an older look at a GPU's memory is not what is so now
_SAFE_UPGRADES = ("", "h2c")  # h2c is an offer that a server may ignore (RFC 9113, section 3.1)


class Proxy:
    """All parts of a running proxy. `start` and `stop` bracket the life of its event loop."""

    def __init__(
        self, settings: Settings, sinks: Mapping[str, Sink], tell: Callable[..., None]
    ) -> None:
        self.settings = settings
        self.tell = tell
        self.lag = LoopLag()
        self.sampler = Sampler()
        self.store = Store(settings.keep_requests)
        self.kept = Kept(settings.state_path / "learned.sqlite3")
        self.baselines = Baselines(self.kept)
        self.metrics = Metrics()
        self.events = Events(self._sample)
        self.series = SeriesStore(settings.keep_requests)
        self._sinks: dict[str, Sink] = {
            "metrics": self.metrics,
            "samples": self.series,
            "events": self.events,
            **sinks,
        }
        self._own_cost = OwnCost()
        self.door: Door | None = None  # where the proxy listens for others than tests
        self.is_stopping = False  # each connection ends with the reply that it is at

    async def start(self, port: int) -> None:
        """Start everything that needs a running loop. `port` is where the proxy listens."""
        settings = self.settings
        self.session = make_session(settings.connect_timeout_s)
        self.engines = Engines(
            self.session,
            settings.upstreams(),
            sampler=self.sampler,
            cache_dir=settings.state_path / "models",
            own_port=port,
            tell=self.tell,
        )
        self.observer = Observer(
            engines=self.engines,
            device=self.device,
            sampler=self.sampler,
            baselines=self.baselines,
            past=Past(self.kept, self.baselines),
            loop_lag=self.lag.most_since,
            store=self.store,
            sinks=self._sinks,
            disabled=settings.disable,
        )
        self.relay = Relay(
            self.session,
            self.engines,
            self.observer,
            client_timeout_s=settings.client_timeout_s,
            annotate=settings.annotate,
            split_nonstreamed=settings.split_nonstreamed,
            records_traces=bool(settings.otlp_endpoint),
        )
        self.ram = RamBandwidth(
            settings.state_path / "ram.json",
            is_quiet=lambda: self.observer.in_flight == 0,
            is_idle=self._cores_are_idle,
        )
        await self.sampler.start()
        self.engines.start(self.observer.is_asked)
        self.ram.start()
        self.lag.start()

    async def stop(self) -> None:
        """Stop everything, leaving no process and no task behind."""
        self.observer.settle_all()
        self.lag.stop()
        await self.ram.stop()
        await self.engines.stop()
        await self.sampler.stop()
        await self.session.close()
        await asyncio.to_thread(self.kept.close)

    def device(self) -> DeviceFacts:
        """Return what is known of this machine."""
        device = self.sampler.device()
        return replace(
            device,
            gpus_reason=device.gpus_reason or self.sampler.status()["gpu_unavailable"],
            ram_bandwidth_bytes_per_s=self.ram.bytes_per_s,
        )

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
        return {
            "version": own_version(),
            "listen": self.settings.listen,
            "engines": [self._engine_status(engine) for engine in self.engines.all],
            "looked_at": self.engines.looked_at,
            "running": self.observer.running(),
            "gpus": gpu_status(device, gpu_samples),
            "machine": {k: v for k, v in asdict(device).items() if k != "gpus"},
            "host": host_now(
                self.sampler.host_window(self._any_port(), now_s - STATUS_WINDOW_S, now_s)
            ),
            "not_visible": [
                *gpus_not_visible(device, gpu_samples),
                *_ram_not_visible(device, self.ram.failure),
                *_learned_not_kept(self.kept.failure),
            ],
            "baselines": self.baselines.summary(),
            "baselines_by_day": self.baselines.by_day(),
            "overhead": {
                "proxy": self._own_cost.summary(),
                "loop_lag": self.lag.summary(),
                "sampling": self.sampler.status(),
                "diagnose_ms_per_request": self._diagnose_ms(),
            },
            "counts": {
                "requests": self.observer.requests,
                "in_flight": self.observer.in_flight,
                "connections_refused": self.door.refused if self.door else 0,
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
            version=own_version(),
            in_flight=self.observer.in_flight,
            engines=tuple(
                EngineNow(name=e.name, kind=e.last_kind, up=e.identity is not None)
                for e in self.engines.all
            ),
            gpus=gpus_now(device, self.sampler.gpu_window(now_s - WINDOW_S, now_s)),
            host=hosts[-1] if hosts else None,
            loop_lag_ms=self.lag.summary(),
            diagnoses=self.observer.diagnosed,
            diagnosis_s_total=self.observer.diagnose_s,
            sampling_up=sampling["alive"],
            sampling_cpu_ratio=sampling["cpu_ratio"],
            sampling_restarts=sampling["restarts"],
            lines_lost=self._log_lines_lost(),
            connections_refused=self.door.refused if self.door else 0,
            listeners=self.events.listeners,
            events_lost=self.events.lost,
            failures=self._failures(),
        )

    def _failures(self) -> dict[str, int]:
        """What broke in observing, by its place."""
        beside = {
            "events": self.events.failed,
            "scraping": sum(engine.scrape_failures for engine in self.engines.all),
        }
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
            "loop_lag": self.lag.summary(),
        }

    def _engine_status(self, engine: Engine) -> dict[str, Any]:
        server, _ = self.engines.facts(engine.name, None)
        return {
            **known(asdict(server)),
            "answers": engine.identity is not None,
            "models": [known(asdict(facts)) for facts in engine.models.values()],
        }

    def _log_lines_lost(self) -> int:
        """Lines that a full disk or a slow reader cost."""
        writers = (getattr(sink, "writer", None) for sink in self._sinks.values())
        return sum(writer.dropped + writer.failed for writer in writers if writer)

    def _diagnose_ms(self) -> float | None:
        requests = self.observer.diagnosed
        return round(self.observer.diagnose_s / requests * 1000, 3) if requests else None


def make_app(proxy: Proxy, *, own_port: Callable[[], int]) -> web.Application:
    """Return the application: guard first, own pages, and the relay for all the rest."""

    async def life(_app: web.Application) -> AsyncIterator[None]:
        await proxy.start(own_port())
        yield
        await proxy.stop()

    async def relay(request: web.Request) -> web.StreamResponse:
        return await proxy.relay.handle(request)

    async def close_when_stopping(_: web.Request, response: web.StreamResponse) -> None:
        if proxy.is_stopping:
            response.force_close()
            response.headers["Connection"] = "close"

    async def close_events(_: web.Application) -> None:
        proxy.events.close()

    app = web.Application(middlewares=[_guard(proxy.settings, relay)])
    app.cleanup_ctx.append(life)
    app.on_response_prepare.append(_drop_what_was_added)
    app.on_response_prepare.append(close_when_stopping)
    app.on_shutdown.append(close_events)
    api = Api(
        proxy.store,
        proxy.status,
        events=proxy.events,
        metrics=proxy.metrics,
        now=proxy.now,
        series=proxy.series,
    )
    app.add_routes(api.routes())
    app.router.add_route("*", "/{rest:(?s:.*)}", relay)
    return app


def _guard(settings: Settings, relay: Handler) -> Any:
    """Return the middleware that refuses foreign hosts and pages, and what cannot be relayed."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        refusal = guard.refuse(
            request.headers.get("Host"),
            origin,
            own_hosts=(settings.host, *settings.allow_host),
            allowed=settings.allow_origin,
        )
        if refusal is not None:
            return error_response(403, refusal, "refused")
        upgrade = request.headers.get("Upgrade", "").lower()
        if upgrade not in _SAFE_UPGRADES or request.method == "CONNECT":
            what = upgrade if upgrade.isalnum() else "a protocol change"
            message = f"slowtok relays HTTP requests only, not {what}"
            return error_response(501, message, "not-implemented")
        if (
            origin
            and request.method == "OPTIONS"
            and "Access-Control-Request-Method" in request.headers
        ):
            return _preflight(request, origin)
        if request.match_info.http_exception is not None:  # no path to route by, as `OPTIONS *`
            handler = relay
        refused = api_key.check(request, settings.api_key.get_secret_value())
        response = await handler(request) if refused is None else refused
        if origin and PASSED not in response:
            allow_page(response.headers, origin)
        return response

    return check


def _preflight(request: web.Request, origin: str) -> web.Response:
    """Answer a browser's question before its request: the engine never sees its origin."""
    asked = request.headers.get("Access-Control-Request-Headers", "*")
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": asked,
            "Access-Control-Max-Age": "600",
            "Vary": "Origin",
        },
    )


async def _drop_what_was_added(_request: web.Request, response: web.StreamResponse) -> None:
    """Take back what aiohttp adds: the engine's own field, or its absence, is passed on."""
    passed = response.get(PASSED)
    if passed is None or "Server" not in passed:
        response.headers.popall("Server", None)
    if passed is not None and "Content-Type" not in passed:
        response.headers.popall("Content-Type", None)


def _ram_not_visible(device: DeviceFacts, failure: str | None) -> list[dict[str, str]]:
    if device.ram_bandwidth_bytes_per_s is not None:
        return []
    why = failure or "not measured yet; it waits for a quiet second"
    return [{"fact": "RAM bandwidth", "why": why}]


def _learned_not_kept(failure: str | None) -> list[dict[str, str]]:
    if failure is None:
        return []
    return [{"fact": "what was learned before", "why": f"{failure}; it is kept in memory only"}]


def make_runner(app: web.Application) -> web.AppRunner:
    """Return the server: cancels a request when its client goes, changes no body."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        keepalive_timeout=75,
        max_line_size=64 * 1024,
        max_field_size=64 * 1024,
        shutdown_timeout=1.0,  # drain.py has waited before
        handle_signals=False,
    )
