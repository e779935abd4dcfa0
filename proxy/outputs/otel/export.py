"""Sets up OpenTelemetry's SDK for an endpoint: protocol, resource, counting of lost spans.

Everything else is configured by the standard OTEL_* variables, which the SDK reads itself.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcMetrics,
)
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpMetrics,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanKind, Tracer

from slowtok.proxy.runtime.version import own_version

GRPC_PORT = 4317
"""OTLP over gRPC is registered there, OTLP over HTTP at 4318 (opentelemetry.io/docs/specs/otlp)."""

PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
CLOSE_MS = 1500


class ChosenIds(RandomIdGenerator):
    """An id generator of random ids, which can be given ids for the next span. Single-threaded."""

    def __init__(self) -> None:
        self._next: tuple[int, int] | None = None

    def choose(self, trace_id: int, span_id: int) -> None:
        """Use these ids for the next span, which must be a root."""
        self._next = (trace_id, span_id)

    def generate_trace_id(self) -> int:
        """Return the trace id of a new span."""
        return self._next[0] if self._next else super().generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        chosen, self._next = self._next, None
        return chosen[1] if chosen else super().generate_span_id()


@dataclass(frozen=True, slots=True)
class Providers:
    """The configured SDK; `close` exports what is left."""

    traces: TracerProvider
    metrics: MeterProvider
    ids: ChosenIds

    def tracer(self, name: str, version: str | None) -> Tracer:
        """Return the tracer."""
        return self.traces.get_tracer(name, version)

    def meter(self, name: str, version: str | None) -> Meter:
        """Return the meter."""
        return self.metrics.get_meter(name, version or "")

    def close(self) -> None:
        """Export what is left, within a short time, and stop."""
        self.traces.force_flush(CLOSE_MS)
        self.traces.shutdown()
        with contextlib.suppress(Exception):  # a receiver that is gone
            self.metrics.shutdown(CLOSE_MS)


def open_providers(endpoint: str, count_lost: Callable[[int], None]) -> Providers:
    """Set up the SDK for a receiver; `count_lost` gets how many requests lost their spans.

    Raises:
        ValueError: an unsupported protocol.
    """
    spans, metrics = _exporters(endpoint)
    ids = ChosenIds()
    traces = TracerProvider(resource=_resource(), id_generator=ids, shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(_Counted(spans, count_lost)))
    reader = PeriodicExportingMetricReader(metrics)
    meters = MeterProvider([reader], resource=_resource(), shutdown_on_exit=False)
    return Providers(traces, meters, ids)


def _exporters(endpoint: str) -> tuple[SpanExporter, MetricExporter]:
    default = "grpc" if urlsplit(endpoint).port == GRPC_PORT else "http/protobuf"
    protocol = os.environ.get(PROTOCOL) or default
    if protocol == "grpc":
        return GrpcSpans(endpoint=endpoint), GrpcMetrics(endpoint=endpoint)
    if protocol != "http/protobuf":
        raise ValueError(f"{PROTOCOL} is {protocol!r}: expected grpc or http/protobuf")
    base = endpoint.rstrip("/")
    return HttpSpans(endpoint=f"{base}/v1/traces"), HttpMetrics(endpoint=f"{base}/v1/metrics")


def _resource() -> Resource:
    """Return the resource: slowtok, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES is set."""
    resource = Resource.create()
    own = {SERVICE_VERSION: own_version() or "unknown"}
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        own[SERVICE_NAME] = "slowtok"
    return resource.merge(Resource(own))


class _Counted(SpanExporter):
    """An exporter that counts its failures, by request."""

    def __init__(self, exporter: SpanExporter, count_lost: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._count_lost = count_lost

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._count_lost(sum(span.kind is SpanKind.CLIENT for span in spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
