"""`/slowtok/events`: what happens, as it happens, for whoever listens (server-sent events).

Strategy: an event is written down once and put into each listener's own bounded queue; that never
waits. Who takes too long loses the oldest of them and is told how many. While nobody listens,
nothing is made.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.http.response import error_page
from slowtok.proxy.outputs.running import running_entry
from slowtok.proxy.relay.exchange import Exchange

MAX_LISTENERS = 16
MAX_QUEUED = 256  # events for one listener: what a busy second brings, several times over
LOOK_S = 0.2  # how late a first token may be told; its own time is in the event
TELL_S = 1.0  # between two looks at a running request, and between two samples
HEARTBEAT_S = 15.0  # proxies on the way give up on connections that are silent for 30 to 60 s

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would collect events
}


class EventListener:
    """One who listens: a queue that never makes anybody wait."""

    def __init__(self, most: int = MAX_QUEUED) -> None:
        self._events: deque[bytes] = deque()
        self._most = most
        self._lost = 0
        self.some = asyncio.Event()

    def put(self, event: bytes) -> int:
        """Add an event; returns how many were lost for it."""
        self._events.append(event)
        self.some.set()
        if len(self._events) <= self._most:
            return 0
        self._events.popleft()
        self._lost += 1
        return 1

    def take(self) -> bytes:
        """Return all that waits, after a word on what was lost before it."""
        self.some.clear()
        lost, self._lost = self._lost, 0
        waiting = b"".join(self._events)
        self._events.clear()
        return (written("lost", {"events": lost}) if lost else b"") + waiting


class Events:
    """Tells every listener; as a sink it tells of records, as a watcher of each request's steps."""

    def __init__(
        self, sample: Callable[[], dict[str, Any]], *, max_listeners: int = MAX_LISTENERS
    ) -> None:
        self._sample = sample
        self._max_listeners = max_listeners
        self._live: dict[str, Exchange] = {}
        self._has_token: set[str] = set()  # of those, by id: its first token was told
        self._listeners: dict[EventListener, web.Request] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self.lost = 0
        self.failed = 0

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Tell of a finished request."""
        if self._listeners:
            self._tell("record", record)

    def note(self, step: str, exchange: Exchange) -> None:
        """Take note of a step of a generation (`begin`, `sent`, `end`), and tell of it."""
        if exchange.api is None:
            return
        if step == "begin":
            self._live[exchange.request_id] = exchange
        elif step == "end":
            self._live.pop(exchange.request_id, None)
            self._has_token.discard(exchange.request_id)
        if self._listeners:
            self._tell(step, running_entry(exchange, time.monotonic()))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Serve one listener until it goes away."""
        if self._is_closed or len(self._listeners) >= self._max_listeners:
            message = (
                f"too many listeners (limit {self._max_listeners}): close a page, or retry later"
            )
            return error_page(503, message, "overloaded")
        listener = EventListener()
        self._greet(listener)
        self._listeners[listener] = request
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        response = web.StreamResponse(headers=HEADERS)
        try:
            await response.prepare(request)
            await self._serve(listener, response)
        except ConnectionError:
            pass  # it went away
        finally:
            self._listeners.pop(listener, None)
            self._stop_looking_for_nobody()
        return response

    def close(self) -> None:
        """Let every listener go: the proxy stops. One that does not read is not waited for."""
        self._is_closed = True
        for listener, request in self._listeners.items():
            listener.some.set()
            transport = request.transport
            if transport is not None and transport.get_write_buffer_size():
                transport.abort()

    async def _serve(self, listener: EventListener, response: web.StreamResponse) -> None:
        while not self._is_closed:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await listener.some.wait()
            except TimeoutError:
                await response.write(b": still here\n\n")
                continue
            if waiting := listener.take():
                await response.write(waiting)

    def _greet(self, listener: EventListener) -> None:
        """Tell a new listener what is on its way already, and how the machine is."""
        now_s = time.monotonic()
        for exchange in self._live.values():
            listener.put(written("progress", running_entry(exchange, now_s)))
        listener.put(written("sample", self._sample()))

    def _tell(self, event: str, said: dict[str, Any]) -> None:
        if self._listeners:
            text = written(event, said)
            self.lost += sum(listener.put(text) for listener in self._listeners)

    async def _look(self) -> None:
        """While somebody listens, look at what runs: first tokens often, the rest once a second."""
        told_at_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            try:
                self._tell_first_tokens(now_s)
                if now_s - told_at_s >= TELL_S:
                    told_at_s = now_s
                    self._tell_progress(now_s)
            except Exception:  # noqa: BLE001 - one look that breaks costs only itself
                self.failed += 1

    def _tell_first_tokens(self, now_s: float) -> None:
        waiting = (e for e in self._live.values() if e.request_id not in self._has_token)
        for exchange in waiting:
            entry = running_entry(exchange, now_s)
            if "ttft_s" in entry:
                self._has_token.add(exchange.request_id)
                self._tell("first-token", entry)

    def _tell_progress(self, now_s: float) -> None:
        for exchange in self._live.values():
            self._tell("progress", running_entry(exchange, now_s))
        self._tell("sample", self._sample())

    def _stop_looking_for_nobody(self) -> None:
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._looking = None


def written(event: str, said: dict[str, Any]) -> bytes:
    """Return one event as it stands on the wire."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(said, default=str))
