"""A receiver of OTLP, over HTTP and over gRPC, that decodes what it gets with OTLP's own schema."""

import gzip
import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

WAIT_S = 10.0


@dataclass(slots=True)
class Receiver:
    """What has come, request by request; `status` is what an HTTP receiver answers."""

    url: str = ""
    status: int = 200
    traces: "queue.Queue[Any]" = field(default_factory=queue.Queue)
    metrics: "queue.Queue[Any]" = field(default_factory=queue.Queue)
    headers: list[dict[str, str]] = field(default_factory=list)

    def spans(self) -> list[Any]:
        """The spans of the next request."""
        sent = self.traces.get(timeout=WAIT_S)
        return [s for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans]

    def resource(self) -> dict[str, Any]:
        """Who sent the next request of metrics."""
        [sent] = self.metrics.get(timeout=WAIT_S).resource_metrics
        return attributes(sent.resource.attributes)

    def histograms(self) -> dict[str, Any]:
        """The metrics of the next request, by name."""
        sent = self.metrics.get(timeout=WAIT_S)
        scopes = [scope for r in sent.resource_metrics for scope in r.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


def attributes(pairs: Any) -> dict[str, Any]:
    """OTLP's key-value pairs as a dictionary."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    """Listen on a free port, over HTTP."""
    receiver = Receiver()
    paths: dict[str, tuple[Any, queue.Queue[Any]]] = {
        "/v1/traces": (trace_service.ExportTraceServiceRequest, receiver.traces),
        "/v1/metrics": (metrics_service.ExportMetricsServiceRequest, receiver.metrics),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            message, kept = paths[self.path]
            receiver.headers.append(dict(self.headers))
            if receiver.status == 200:
                kept.put(message.FromString(body))
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    """Listen on a free port, over gRPC."""
    receiver = Receiver()

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - OTLP's name
            receiver.traces.put(request)
            return trace_service.ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - OTLP's name
            receiver.metrics.put(request)
            return metrics_service.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    generated: tuple[Any, Any] = (trace_grpc, metrics_grpc)  # without types
    generated[0].add_TraceServiceServicer_to_server(Traces(), server)
    generated[1].add_MetricsServiceServicer_to_server(Metrics(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        server.stop(None).wait()
