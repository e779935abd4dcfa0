"""`/slowtok/events`: steps and records as they happen, as server-sent events.

Strategy: an event is serialised once and put into each listener's own bounded queue, which never
blocks. A slow listener loses the oldest events, and is told how many. Without listeners, nothing is
made.
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
from slowtok.proxy.outputs.in_flight import running_entry
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
    """The queue of one listener; putting never blocks."""

    def __init__(self, most: int = MAX_QUEUED) -> None:
        self._events: deque[bytes] = deque()
        self._most = most
        self._lost = 0
        self.some = asyncio.Event()

    def put(self, event: bytes) -> int:
        """Add an event; return how many were dropped for it."""
        self._events.append(event)
        self.some.set()
        if len(self._events) <= self._most:
            return 0
        self._events.popleft()
        self._lost += 1
        return 1

    def take(self) -> bytes:
        """Return all queued events, after a note on how many were dropped before."""
        self.some.clear()
        lost, self._lost = self._lost, 0
        waiting = b"".join(self._events)
        self._events.clear()
        return (written("lost", {"events": lost}) if lost else b"") + waiting


class Events:
    """Sends events to all listeners: records as a sink, the steps of each request as a watcher."""

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
        """Number of listeners."""
        return len(self._listeners)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Send the record of a finished request."""
        if self._listeners:
            self._tell("record", record)

    def note(self, step: str, exchange: Exchange) -> None:
        """Send a step of a generation (`begin`, `sent`, `end`)."""
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
        """Serve one listener until it disconnects."""
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
        """Disconnect all listeners, because the proxy stops; does not wait for a stuck one."""
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
        """Send a new listener the requests in flight and the state of the machine."""
        now_s = time.monotonic()
        for exchange in self._live.values():
            listener.put(written("progress", running_entry(exchange, now_s)))
        listener.put(written("sample", self._sample()))

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        if self._listeners:
            text = written(event, data)
            self.lost += sum(listener.put(text) for listener in self._listeners)

    async def _look(self) -> None:
        """While there are listeners, poll the requests in flight.

        First tokens are checked often, everything else once a second.
        """
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


def written(event: str, data: dict[str, Any]) -> bytes:
    """Return one event in wire format."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(data, default=str))
