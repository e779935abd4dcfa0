"""`/slowtok/metrics`: finished requests as Prometheus metrics. docs/metrics.md lists them all.

Strategy: what is counted request by request is kept in cells; what is so now comes in as `Now` when
somebody asks. Every label has a bounded number of values.
"""

import asyncio
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.proxy.outputs.labels import Names, ending, unexplained_s
from slowtok.proxy.outputs.metrics.counters import Counter, Histograms, MetricCounters
from slowtok.proxy.outputs.metrics.gauges import gauges
from slowtok.proxy.outputs.metrics.snapshot import Now

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
    ("slowtok_accepted_tokens", "Drafted tokens that were taken."),
)
_COUNTED = attrgetter("prompt", "cached", "completion", "drafted", "accepted")  # in that order
_MEASURES = (
    ("slowtok_request_seconds", "From first byte to last.", REQUEST_S),
    (
        "slowtok_time_to_first_token_seconds",
        "From the request to its first token.",
        FIRST_TOKEN_S,
    ),
    ("slowtok_queue_seconds", "Waiting in the engine.", WAIT_S),
    ("slowtok_load_seconds", "Loading the model.", WAIT_S),
    ("slowtok_prefill_seconds", "Reading the prompt.", FIRST_TOKEN_S),
    (
        "slowtok_time_per_output_token_seconds",
        "Decode time of one token after the first.",
        TOKEN_S,
    ),
    ("slowtok_decode_tokens_per_second", "Decode rate of a request.", DECODE_TPS),
    ("slowtok_prefill_tokens_per_second", "Prompt tokens computed per second.", PREFILL_TPS),
    ("slowtok_decode_of_expected_ratio", "Decode rate by the rate to expect here.", OF_EXPECTED),
    ("slowtok_proxy_seconds", "Held by slowtok itself.", PROXY_S),
)
_EOF = b"# EOF\n"  # ends OpenMetrics


class Metrics:
    """Counts finished requests; as a sink it takes each one, `exposition` gives the text."""

    def __init__(self) -> None:
        self._process = ProcessCollector(registry=None)
        self._families: list[Counter | MetricCounters | Histograms] = []
        self._models = Names()
        self._count_requests()
        self._tokens = MetricCounters(_OF, *_TOKENS)
        self._measures = Histograms(_OF, *_MEASURES)
        self._families += (self._tokens, self._measures)

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Count a finished request."""
        kind = case.server.kind
        if diagnosis is None:
            self._passed.inc((kind,))
            return
        who = (kind, self._models.of(case))
        request = (case.timeline.request_id, time.time())
        self._requests.inc((*who, diagnosis.verdict, diagnosis.phase or "none"), 1, request)
        self._endings.inc((*who, ending(case)))
        for cause, finding in diagnosis.findings.items():
            if not finding.informational:
                self._named.inc((*who, cause, finding.phase), 1, request)
                self._lost.inc((*who, cause, finding.phase), finding.lost_s, request)
        for lost_in, lost_s in unexplained_s(diagnosis).items():
            self._lost.inc((*who, "unexplained", lost_in), lost_s, request)
        self._tokens.inc(who, _COUNTED(case.timeline.tokens))
        self._measures.observe(who, _measured(case), request)

    async def exposition(self, accept: str, now: Now) -> tuple[bytes, str]:
        """Return all metrics as text, and its content type; OpenMetrics where `accept` wants it.

        Metric by metric, with a pause after each: with many models, writing all of them takes
        longer than tokens may wait.
        """
        encode, content_type = choose_encoder(accept)
        pieces = []
        for metric in self._all(now):
            pieces.append(encode(_Only(metric)).removesuffix(_EOF))
            await asyncio.sleep(0)
        if content_type.startswith("application/openmetrics"):
            pieces.append(_EOF)
        return b"".join(pieces), content_type

    def _all(self, now: Now) -> Iterator[Metric]:
        yield from self._process.collect()
        for counted in self._families:
            yield from counted.families()
        yield from gauges(now)

    def _count_requests(self) -> None:
        self._requests = self._counter(
            "requests",
            "Finished generations by verdict and, where slow, phase.",
            "verdict",
            "phase",
        )
        self._endings = self._counter("endings", "Finished generations by how they ended.", "ended")
        said = "Relayed requests that ask for no generation."
        self._passed = Counter("slowtok_passed_through", said, ("kind",))
        self._families.append(self._passed)
        self._lost = self._counter(
            "lost_seconds",
            "Time that slow requests lost against expectation, by cause.",
            "cause",
            "phase",
        )
        self._named = self._counter(
            "findings", "Slow requests in which a cause was named.", "cause", "phase"
        )

    def _counter(self, name: str, said: str, *labels: str) -> Counter:
        counter = Counter(f"slowtok_{name}", said, (*_OF, *labels))
        self._families.append(counter)
        return counter


def _measured(case: Case) -> tuple[float | None, ...]:
    """Return `_MEASURES` of one request; what was only estimated is left out."""
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
    """One metric to be written."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield self._metric
