"""The proxy's own pages under /slowtok/: records, events, status, metrics, health."""

import os
import re
import time
from collections.abc import Callable
from typing import Any, Protocol

import orjson
import psutil
from aiohttp import web

from slowtok.proxy.http.response import error_page
from slowtok.proxy.outputs.events import Events
from slowtok.proxy.outputs.metrics.metrics import Metrics
from slowtok.proxy.outputs.metrics.snapshot import Snapshot
from slowtok.proxy.outputs.record_ring import RecordRing
from slowtok.proxy.outputs.series import SeriesStore
from slowtok.proxy.runs.ledger import MAX_LISTED as MAX_RUNS
from slowtok.proxy.web.page.serve import Page

MAX_LISTED = 500
WRONG_LIMIT = "limit: expected a whole number, at least 0"
READING = ("GET", "HEAD")
RECORD_WAIT_S = 0.5  # a record is due 0.25 s after the last byte; asked for earlier, it is awaited

PAGES = ("", "requests", "runs", "events", "status", "metrics", "health")

Status = Callable[[], dict[str, Any]]


class RunsSeen(Protocol):
    """The runs that were seen, those that go on among them."""

    def newest_first(self, limit: int) -> list[dict[str, Any]]:
        """Return them in short."""
        ...

    def one(self, wanted: str) -> dict[str, Any] | None:
        """Return one in full; None where there is none such."""
        ...


class ApiPages:
    """Answers what is asked under /slowtok/."""

    def __init__(
        self,
        store: RecordRing,
        status: Status,
        *,
        runs: RunsSeen,
        events: Events,
        metrics: Metrics,
        now: Callable[[], Snapshot],
        series: SeriesStore,
        publish_all: Callable[[], None],
    ) -> None:
        self._store = store
        self._status = status
        self._runs = runs
        self._events = events
        self._metrics = metrics
        self._now = now
        self._series = series
        self._publish_all = publish_all

    def routes(self) -> list[web.RouteDef]:
        """Return the routes; any other path under /slowtok is answered here too, with a 404."""
        return [
            web.get("/slowtok/status", self.status),
            web.get("/slowtok/metrics", self.metrics),
            web.get("/slowtok/events", self._events.stream, allow_head=False),
            web.get("/slowtok/requests", self.requests),
            web.get("/slowtok/requests/{id}", self.request),
            web.get("/slowtok/requests/{id}/samples", self.samples),
            web.get("/slowtok/runs", self.runs),
            web.get("/slowtok/runs/{id}", self.run),
            *Page().routes(),
            web.route("*", "/slowtok", self.unknown),
            web.route("*", "/slowtok/{rest:(?s:.*)}", self.unknown),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        """Return what the proxy sees: engines, machine, own overhead."""
        return _json(self._status())

    async def metrics(self, request: web.Request) -> web.Response:
        """Return all metrics in Prometheus' text format, or OpenMetrics where it is asked for."""
        self._publish_all()
        accept = request.headers.get("Accept", "")
        body, content_type = await self._metrics.exposition(accept, self._now())
        headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
        return web.Response(body=body, headers=headers)

    async def requests(self, request: web.Request) -> web.Response:
        """Return recent records, the newest first; `?limit=N` for fewer."""
        limit = _limit(request, MAX_LISTED)
        if limit is None:
            return error_page(400, WRONG_LIMIT, "bad-request")
        self._publish_all()
        return _json_bytes(self._store.newest_first(limit))

    async def request(self, request: web.Request) -> web.Response:
        """Return one record, waiting a moment for one whose request has just ended."""
        record = await self._store.get(request.match_info["id"], RECORD_WAIT_S)
        if record is None:
            return error_page(404, "no finished request with this id", "not-found")
        return _json_bytes(record)

    async def samples(self, request: web.Request) -> web.Response:
        """Return how one request went over time, as long as that is kept."""
        request_id = request.match_info["id"]
        await self._store.get(request_id, RECORD_WAIT_S)
        body = self._series.get(request_id)
        if body is None:
            return error_page(404, "no samples are kept of such a request", "not-found")
        return _json_bytes(body)

    async def runs(self, request: web.Request) -> web.Response:
        """Return recent runs in short, the newest first; `?limit=N` for fewer."""
        limit = _limit(request, MAX_RUNS)
        if limit is None:
            return error_page(400, WRONG_LIMIT, "bad-request")
        self._publish_all()
        return _json({"runs": self._runs.newest_first(limit)})

    async def run(self, request: web.Request) -> web.Response:
        """Return one run in full: by its id, by its name, or `last`."""
        self._publish_all()
        found = self._runs.one(request.match_info["id"])
        if found is None:
            return error_page(404, "no run with this id or name", "not-found")
        return _json(found)

    async def unknown(self, request: web.Request) -> web.Response:
        """Answer a path that is not ours: it must never reach an engine."""
        if allowed := [method for method in READING if await self._answers(method, request)]:
            said = f"{request.path} is there for {' and '.join(allowed)} alone"
            refused = error_page(405, said, "method-not-allowed")
            refused.headers["Allow"] = ", ".join(allowed)
            return refused
        known = ", ".join(f"/slowtok/{page}" for page in PAGES)
        return error_page(404, f"{request.path} does not exist; there are {known}", "not-found")

    async def _answers(self, method: str, request: web.Request) -> bool:
        found = await request.app.router.resolve(request.clone(method=method))
        return found.handler != self.unknown


class OwnCost:
    """What the proxy process itself costs: CPU since the last look, memory now."""

    def __init__(self) -> None:
        self._process = psutil.Process(os.getpid())
        self._last = (time.monotonic(), time.process_time())

    def summary(self) -> dict[str, float]:
        """Return CPU as a share of one core since the last call, and resident memory."""
        now = (time.monotonic(), time.process_time())
        elapsed_s = max(now[0] - self._last[0], 1e-3)
        cpu_ratio = (now[1] - self._last[1]) / elapsed_s
        self._last = now
        return {
            "cpu_ratio": round(cpu_ratio, 4),
            "resident_bytes": self._process.memory_info().rss,
        }


def _limit(request: web.Request, most: int) -> int | None:
    """Return how many are asked for, at most `most`; None for what is no number."""
    text = request.query.get("limit", str(most))
    return min(int(text), most) if re.fullmatch("[0-9]{1,9}", text) else None


def _json(value: Any) -> web.Response:
    return _json_bytes(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS))


def _json_bytes(body: bytes) -> web.Response:
    response = web.Response(body=body, content_type="application/json", charset="utf-8")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
