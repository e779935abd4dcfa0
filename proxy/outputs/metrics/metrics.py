"""`/slowtok/metrics`: finished requests as Prometheus metrics. docs/metrics.md lists them all.

Requests are counted in the library's counters and histograms; the present state is read as a
`Snapshot` on each scrape. Every label has a bounded number of values.
"""

import asyncio
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.labels import ModelLabels, ending, unexplained_s
from slowtok.proxy.outputs.metrics.snapshot import Snapshot, gauges

# Bounds are around the numbers that verdicts rest on; heuristic.
REQUEST_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
FIRST_TOKEN_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WAIT_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
DECODE_TPS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 250, 500)
PREFILL_TPS = (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
OF_EXPECTED = (0.1, 0.25, 0.5, 0.7, 0.85, 1, 1.15, 1.5)
PROXY_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)

_OF = ("kind", "model")
_TOKENS = (
    ("slowtok_prompt_tokens", "Prompt tokens, cached ones included."),
    ("slowtok_cached_tokens", "Prompt tokens taken from the cache."),
    ("slowtok_completion_tokens", "Generated tokens."),
    ("slowtok_drafted_tokens", "Tokens drafted by speculation."),
    ("slowtok_accepted_tokens", "Drafted tokens that were accepted."),
)
_COUNTED = attrgetter("prompt", "cached", "completion", "drafted", "accepted")  # in that order
_MEASURES = (
    ("slowtok_request_seconds", "Time of a request, from its first byte to its last.", REQUEST_S),
    (
        "slowtok_time_to_first_token_seconds",
        "Time from the request to its first token, of streams.",
        FIRST_TOKEN_S,
    ),
    ("slowtok_queue_seconds", "Time that a request waited in the engine.", WAIT_S),
    ("slowtok_load_seconds", "Time that the engine took to load the model.", WAIT_S),
    ("slowtok_prefill_seconds", "Time that the engine took to compute the prompt.", FIRST_TOKEN_S),
    (
        "slowtok_time_per_output_token_seconds",
        "Decode time of one token after the first.",
        TOKEN_S,
    ),
    ("slowtok_decode_tokens_per_second", "Decode rate of a request.", DECODE_TPS),
    ("slowtok_prefill_tokens_per_second", "Prompt tokens computed per second.", PREFILL_TPS),
    (
        "slowtok_decode_of_expected_ratio",
        "Decode rate divided by the rate to expect here.",
        OF_EXPECTED,
    ),
    ("slowtok_proxy_seconds", "Time that slowtok itself held a request.", PROXY_S),
)
_EOF = b"# EOF\n"  # ends OpenMetrics


M = TypeVar("M", Counter, Histogram)


class _Series(dict[tuple[str, ...], M]):
    """A metric's series cached by labels; the library's `labels` takes a third of the time."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric: M = metric

    def __missing__(self, labels: tuple[str, ...]) -> M:
        series = self[labels] = self._metric.labels(*labels)
        return series


class Metrics:
    """Counts finished requests as a sink; `exposition` returns the text."""

    def __init__(self) -> None:
        # They would say of each series when it began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._models = ModelLabels()
        self._requests = self._counter(
            "slowtok_requests",
            "Finished generations by verdict and, where slow, phase.",
            (*_OF, "verdict", "phase"),
        )
        self._endings = self._counter(
            "slowtok_endings", "Finished generations by how they ended.", (*_OF, "ended")
        )
        self._passed = self._counter(
            "slowtok_passed_through", "Relayed requests that generate nothing.", ("kind",)
        )
        self._lost = self._counter(
            "slowtok_lost_seconds",
            "Time that slow requests lost against expectation, by cause.",
            (*_OF, "cause", "phase"),
        )
        self._named = self._counter(
            "slowtok_findings",
            "Slow requests in which a cause was named.",
            (*_OF, "cause", "phase"),
        )
        self._tokens = [self._counter(name, description, _OF) for name, description in _TOKENS]
        self._measures = [
            _Series(Histogram(name, description, _OF, buckets=bounds, registry=self._registry))
            for name, description, bounds in _MEASURES
        ]

    def _counter(self, name: str, description: str, labels: tuple[str, ...]) -> _Series[Counter]:
        return _Series(Counter(name, description, labels, registry=self._registry))

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Count a finished request."""
        kind = case.server.kind
        if diagnosis is None:
            self._passed[kind,].inc()
            return
        who = (kind, self._models.of(case))
        exemplar = {"request_id": case.timeline.request_id}
        self._requests[*who, diagnosis.verdict, diagnosis.phase or "none"].inc(1, exemplar)
        self._endings[*who, ending(case)].inc()
        for cause, finding in diagnosis.findings.items():
            if not finding.informational:
                self._named[*who, cause, finding.phase].inc(1, exemplar)
                self._lost[*who, cause, finding.phase].inc(finding.lost_s, exemplar)
        for lost_in, lost_s in unexplained_s(diagnosis).items():
            self._lost[*who, "unexplained", lost_in].inc(lost_s, exemplar)
        for tokens, count in zip(self._tokens, _COUNTED(case.timeline.tokens), strict=True):
            if count is not None:
                tokens[who].inc(count)
        for measure, value in zip(self._measures, _measured(case), strict=True):
            if value is not None:
                measure[who].observe(value, exemplar)

    async def exposition(self, accept: str, now: Snapshot) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type: OpenMetrics if `accept` wants it.

        Metric by metric, with a pause after each: with many models, serialising all of them at once
        would delay tokens.
        """
        encode, content_type = choose_encoder(accept)
        pieces = []
        for metric in self._all(now):
            pieces.append(encode(_Only(metric)).removesuffix(_EOF))
            await asyncio.sleep(0)
        if content_type.startswith("application/openmetrics"):
            pieces.append(_EOF)
        return b"".join(pieces), content_type

    def _all(self, now: Snapshot) -> Iterator[Metric]:
        yield from self._registry.collect()
        yield from gauges(now)


def _measured(case: Case) -> tuple[float | None, ...]:
    """Return the `_MEASURES` of one request, without estimated ones."""
    phases, expected_tps = case.phases, case.envelope.expected_tps
    prefill_s = token_s = decode_tps = prefill_tps = of_expected = None
    if phases.source != "estimate":
        prefill_s, prefill_tps, decode_tps = phases.prefill_s, phases.prefill_tps, phases.decode_tps
        token_s = 1 / decode_tps if decode_tps else None
        if decode_tps is not None and expected_tps:
            of_expected = decode_tps / expected_tps
    return (
        phases.total_s,
        phases.ttft_s,
        phases.queue_s,
        phases.load_s,
        prefill_s,
        token_s,
        decode_tps,
        prefill_tps,
        of_expected,
        case.timeline.proxy_s,
    )


class _Only:
    """A collector of a single metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        yield self._metric
