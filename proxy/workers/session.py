"""The observing process's session with one worker, with copies of its exchanges."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from slowtok.detectors.case.case import Case
from slowtok.proxy.engines.registry import Engines
from slowtok.proxy.engines.routing import first
from slowtok.proxy.observe.observer import Observer
from slowtok.proxy.observe.setups import SetupKey
from slowtok.proxy.outputs.previous_verdicts import EndedVerdict
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.prompt_fingerprint import PromptFingerprint
from slowtok.proxy.workers.channel import Handlers
from slowtok.proxy.workers.wire import (
    AT_END,
    AT_SENDING,
    Diagnosed,
    Heartbeat,
    Packed,
    RemoteDirectory,
    RemoteEngine,
    RemoteMeter,
    as_remote_engine,
    begun,
    update,
)


class WorkerSession:
    """Handles the messages of one worker; a copy lives as long as its exchange, or the worker.

    An `only` worker judges short requests itself, because it knows of all requests that ended
    before.
    """

    def __init__(
        self,
        observer: Observer,
        engines: Engines,
        log_event: Callable[..., None],
        *,
        only: bool = True,
    ) -> None:
        self._observer = observer
        self._engines = engines
        self._log_event = log_event
        self._copies: dict[str, Exchange] = {}
        self._reported_directory: RemoteDirectory | None = None
        self._reported_setups = 0
        self._is_only = only
        self._found_at_s: dict[str, float | None] = {}
        self.heartbeats = 0
        self.requests = 0
        self.refused = 0
        self.loop_lag: Mapping[str, float | None] = {}
        self.held: Mapping[str, int] = {}

    @property
    def in_flight(self) -> int:
        """How many requests of this worker are in flight."""
        return len(self._copies)

    def handlers(self) -> Handlers:
        """Return the handlers of the worker's messages by name."""
        return {
            "begin": self._begin,
            "sent": self._sent,
            "sent_stream": self._sent_stream,
            "fingerprinted": self._fingerprinted,
            "arrived": self._arrived,
            "diagnose": self._diagnose,
            "record_so_far": self._record_so_far,
            "end": self._end,
            "end_diagnosed": self._end_diagnosed,
            "heartbeat": self._heartbeat,
            "choose": self._choose,
            "merged_list": self._engines.merged_list,
            "lose": self._lose,
            "event": self._event,
            "sync": lambda: True,
        }

    def abandon(self) -> int:
        """End all exchanges of a worker that is gone; return how many there were."""
        lost = list(self._copies.values())
        for exchange in lost:
            exchange.end("proxy-stopped", time.monotonic())
            try:
                self._close(exchange)
            except Exception:  # noqa: BLE001 - one that cannot be concluded costs only itself
                self._observer.failures["end"] += 1
        return len(lost)

    def changes(self) -> RemoteDirectory | None:
        """Return the engine directory for the worker; None if it has not changed since."""
        all_engines = self._engines.all
        is_only = (
            len(all_engines) == 1
            and all_engines[0].identity is not None
            and all_engines[0].looked.is_set()
        )
        candidates = self._engines.present or all_engines
        directory = RemoteDirectory(
            several=self._engines.several,
            searched_at=self._engines.searched_at,
            only=as_remote_engine(all_engines[0]) if is_only else None,
            first=as_remote_engine(first(candidates)) if candidates else None,
        )
        if directory == self._reported_directory:
            return None
        self._reported_directory = directory
        return directory

    def changed_setups(self) -> Mapping[SetupKey, Case | None]:
        """Return the facts for judging short requests that changed since the last call."""
        if not self._is_only:
            return {}
        setups = self._observer.setups
        for engine in self._engines.all:
            found_at_s = engine.found_at_s if engine.identity is not None else None
            if self._found_at_s.get(engine.name) != found_at_s:
                self._found_at_s[engine.name] = found_at_s
                setups.forget(engine.name)
        last_reported, self._reported_setups = self._reported_setups, setups.number
        return setups.since(last_reported) if last_reported < setups.number else {}

    def _begin(self, values: Packed) -> None:
        exchange = begun(values)
        self.requests += 1
        self._copies[exchange.request_id] = exchange
        self._observer.begin(exchange)

    def _sent(self, request_id: str, values: Packed) -> Exchange:
        exchange = self._copies[request_id]
        update(exchange, AT_SENDING, values)
        self._observer.sent(exchange)
        return exchange

    def _sent_stream(self, request_id: str, values: Packed) -> EndedVerdict | None:
        """Note that a stream was sent; return the previous verdict, for its head."""
        return self._observer.last_verdict(self._sent(request_id, values).model)

    def _fingerprinted(self, request_id: str, fingerprint: PromptFingerprint) -> None:
        if exchange := self._copies.get(request_id):
            self._observer.note_fingerprint(exchange, fingerprint)

    def _arrived(self, request_id: str, at_s: float) -> None:
        exchange = self._copies[request_id]
        exchange.last_byte_at_s = at_s
        self._observer.arrived(exchange)

    # Handlers that await update the copy before they return their coroutine: the next message about
    # the same exchange may be handled before the coroutine runs.

    def _diagnose(
        self, request_id: str, at_sending: Packed | None, values: Packed
    ) -> Awaitable[Diagnosed]:
        return self._diagnosed(self._updated(request_id, at_sending, values))

    async def _diagnosed(self, exchange: Exchange) -> Diagnosed:
        """Return a reply's headers, and its verdict for the head of the next reply."""
        fields = await self._observer.diagnosis_headers(exchange)
        return fields, self._observer.last_verdict(exchange.model)

    def _record_so_far(
        self, request_id: str, at_sending: Packed | None, values: Packed
    ) -> Awaitable[dict[str, Any] | None]:
        return self._observer.record_so_far(self._updated(request_id, at_sending, values))

    def _end(self, request_id: str, at_sending: Packed | None, values: Packed) -> None:
        self._close(self._updated(request_id, at_sending, values))

    def _end_diagnosed(self, request_id: str) -> None:
        """End a whole reply of which nothing changed since its diagnosis."""
        self._close(self._copies[request_id])

    def _close(self, exchange: Exchange) -> None:
        del self._copies[exchange.request_id]
        self._observer.end(exchange)

    def _updated(self, request_id: str, at_sending: Packed | None, values: Packed) -> Exchange:
        """Update the copy of an exchange and return it."""
        exchange = self._copies[request_id]
        if at_sending is not None:  # it was never sent
            update(exchange, AT_SENDING, at_sending)
        has_arrived = exchange.last_byte_at_s is not None
        update(exchange, AT_END, values)
        if not has_arrived and exchange.last_byte_at_s is not None:
            self._observer.arrived(exchange)
        return exchange

    def _heartbeat(self, heartbeat: Heartbeat) -> None:
        self.heartbeats += 1
        for progress in heartbeat.progress:
            exchange = self._copies.get(progress.request_id)
            if exchange is None or exchange.api is None:
                continue
            exchange.status, exchange.stream = progress.status, progress.stream
            exchange.headers_at_s = progress.headers_at_s
            if exchange.meter is None:
                exchange.meter = RemoteMeter(exchange.api)
            if isinstance(exchange.meter, RemoteMeter):
                exchange.meter.note(progress)
        self._observer.failures.update(heartbeat.failures)
        self.refused, self.loop_lag, self.held = (
            heartbeat.refused,
            heartbeat.loop_lag,
            heartbeat.held,
        )

    async def _choose(
        self, model: str | None, path: str, keys: Mapping[str, str]
    ) -> RemoteEngine | None:
        engine = await self._engines.choose(model, path, keys)
        return None if engine is None else as_remote_engine(engine)

    def _lose(self, name: str) -> None:
        self._reported_directory = None  # the worker has forgotten it
        self._engines.lose(name)

    def _event(self, event: str, facts: Mapping[str, Any]) -> None:
        self._log_event(event, **facts)
