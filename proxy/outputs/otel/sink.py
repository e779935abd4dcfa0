"""The OpenTelemetry sink: spans and metrics of each generation, made and sent in threads.

A failure there costs traces and metrics, never a request: what does not fit into the queue, cannot
be made or cannot be sent is counted.
"""

from typing import Any, NamedTuple

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.otel.export import open_providers
from slowtok.proxy.outputs.otel.metrics import Instruments
from slowtok.proxy.outputs.otel.spans import Spans, Trace
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.runtime.background_writer import BackgroundWriter
from slowtok.proxy.runtime.bounded_map import BoundedMap
from slowtok.proxy.runtime.version import own_version

MAX_QUEUED = 1000  # requests that wait to be told
MAX_TRACES = 4096  # requests on their way whose trace is remembered


class _Item(NamedTuple):
    case: Case
    diagnosis: Diagnosis
    trace: Trace | None


class Otel:
    """Exports each generation to an OTLP receiver at `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        self._traces: BoundedMap[str, Trace] = BoundedMap(MAX_TRACES)
        self._providers = open_providers(endpoint, self._count_lost)
        version = own_version()
        self._spans = Spans(self._providers.tracer("slowtok", version), self._providers.ids)
        self._instruments = Instruments(self._providers.meter("slowtok", version))
        self.writer: BackgroundWriter[Any] = BackgroundWriter(
            self._write, close=self._providers.close, max_queued=MAX_QUEUED
        )

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Queue a finished generation for export."""
        trace = self._traces.pop(case.timeline.request_id, None)
        if diagnosis is not None:
            self.writer.write(_Item(case, diagnosis, trace))

    def note(self, step: str, exchange: Exchange) -> None:
        """Remember the trace of a request until its record arrives."""
        if step != "sent" or exchange.api is None or exchange.traceparent is None:
            return
        self._traces[exchange.request_id] = Trace(exchange.traceparent, exchange.began_trace)

    def _write(self, item: _Item) -> None:
        context = self._spans.tell(item.case, item.diagnosis, item.trace)
        self._instruments.record(item.case, context)

    def _count_lost(self, requests: int) -> None:
        self.writer.failed += requests
