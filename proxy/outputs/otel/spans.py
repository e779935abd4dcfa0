"""One trace per request: a span, a child span for each phase, an event for each finding."""

from collections.abc import Iterator
from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from slowtok.detectors.case.case import Case, Phase
from slowtok.detectors.case.finding import Diagnosis, Finding
from slowtok.proxy.outputs.otel.export import ChosenIds
from slowtok.proxy.outputs.otel.names import Attributes, error_type, of_span, operation

_NS = 1e9


class Trace(NamedTuple):
    """The `traceparent` that was sent to the engine; `is_ours` if the client had sent none."""

    traceparent: str
    is_ours: bool


class Spans:
    """Creates the spans of finished requests, with the times at which things happened."""

    def __init__(self, tracer: Tracer, ids: ChosenIds) -> None:
        self._tracer = tracer
        self._ids = ids

    def tell(self, case: Case, diagnosis: Diagnosis, joined: Trace | None) -> Context:
        """Create all spans of a request; return the context of the first one."""
        begin_s, timeline = case.timeline.accepted_at_s, case.timeline
        span = self._tracer.start_span(
            f"{operation(case)} {timeline.model}" if timeline.model else operation(case),
            self._parent(joined),
            SpanKind.CLIENT,
            of_span(case, diagnosis),
            start_time=_unix_ns(case, begin_s),
        )
        context = trace.set_span_in_context(span)
        end_s = begin_s + case.phases.total_s
        self._tell_phases(case, diagnosis, context)
        for cause, finding in diagnosis.findings.items():
            span.add_event("slowtok.finding", _attributes(cause, finding), _unix_ns(case, end_s))
        _mark_error(case, span)
        span.end(_unix_ns(case, end_s))
        return context

    def _parent(self, joined: Trace | None) -> Context:
        """Return the caller's span; if the trace is ours, make the span use the announced ids."""
        if joined is None:
            return Context()
        carrier = {"traceparent": joined.traceparent}
        parent = TraceContextTextMapPropagator().extract(carrier, Context())
        if not joined.is_ours:
            return parent
        announced = trace.get_current_span(parent).get_span_context()
        self._ids.choose(announced.trace_id, announced.span_id)
        return Context()

    def _tell_phases(self, case: Case, diagnosis: Diagnosis, context: Context) -> None:
        lost_s = {loss.phase: loss.lost_s for loss in diagnosis.losses if loss.slow}
        for phase, begin_s, end_s in phases_of(case):
            attributes: Attributes = {"slowtok.phase": phase}
            if phase in lost_s:
                attributes["slowtok.lost"] = lost_s[phase]
            span = self._tracer.start_span(
                phase, context, attributes=attributes, start_time=_unix_ns(case, begin_s)
            )
            span.end(_unix_ns(case, end_s))


def phases_of(case: Case) -> Iterator[tuple[Phase, float, float]]:
    """Yield each measured phase that took time, with its begin and end."""
    at_s, phases = case.timeline.sent_at_s, case.phases
    waits: tuple[tuple[Phase, float | None], ...] = (
        ("queue", phases.queue_s),
        ("load", phases.load_s),
    )
    for phase, wait_s in waits:
        if at_s is not None and wait_s:
            yield phase, at_s, at_s + wait_s
            at_s += wait_s
    work: tuple[Phase, ...] = ("prefill", "decode", "delivery")
    for phase in work:
        window = case.window(phase)
        if window is not None and (phase == "delivery" or phases.source != "estimate"):
            yield phase, *window


def _attributes(cause: str, finding: Finding) -> Attributes:
    return {
        "slowtok.cause": cause,
        "slowtok.phase": finding.phase,
        "slowtok.confidence": finding.confidence,
        "slowtok.lost": finding.lost_s,
        "slowtok.informational": finding.informational,
        "slowtok.summary": finding.summary,
        "slowtok.remedy": finding.remedy,
    }


def _mark_error(case: Case, span: Span) -> None:
    if error := error_type(case):
        span.set_status(Status(StatusCode.ERROR, error))


def _unix_ns(case: Case, at_s: float) -> int:
    timeline = case.timeline
    return int(timeline.started_unix_s * _NS) + int((at_s - timeline.accepted_at_s) * _NS)
