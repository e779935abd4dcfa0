"""`/slowtok/metrics`: finished requests as Prometheus metrics. docs/metrics.md lists them all.

Strategy: what is counted request by request is kept in cells; what is so now comes in as `Now` when
somebody asks. Every label has a bounded number of values.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from slowtok.detectors.case import Case
from slowtok.detectors.finding import Diagnosis
from slowtok.proxy.outputs.cells import Counter, Histogram, Request
from slowtok.proxy.outputs.gauges import gauges
from slowtok.proxy.outputs.names import Names, ending, unexplained_s
from slowtok.proxy.outputs.now import Now

# Bounds are around the numbers that verdicts rest on; no published source.
REQUEST_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
FIRST_TOKEN_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WAIT_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_S = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
DECODE_TPS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 250, 500)
PREFILL_TPS = (10, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
OF_EXPECTED = (0.1, 0.25, 0.5, 0.7, 0.85, 1, 1.15, 1.5)
PROXY_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)

_OF = ("kind", "model")
_EOF = b"# EOF\n"  # ends OpenMetrics


class Metrics:
    """Counts finished requests; as a sink it takes each one, `exposition` gives the text."""

    def __init__(self) -> None:
        self._process = ProcessCollector(registry=None)
        self._families: list[Counter | Histogram] = []
        self._models = Names()
        self._count_requests()
        self._count_tokens()
        self._measure()

    def __call__(self, case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        """Count a finished request."""
        kind = case.server.kind
        if diagnosis is None:
            self._passed.inc((kind,))
            return
        who = (kind, self._models.of(case))
        request = Request(case.timeline.request_id, time.time())
        self._requests.inc((*who, diagnosis.verdict, diagnosis.phase or "none"), 1, request)
        self._endings.inc((*who, ending(case)))
        for cause, finding in diagnosis.findings.items():
            if not finding.informational:
                self._named.inc((*who, cause, finding.phase), 1, request)
                self._lost.inc((*who, cause, finding.phase), finding.lost_s, request)
        for lost_in, lost_s in unexplained_s(diagnosis).items():
            self._lost.inc((*who, "unexplained", lost_in), lost_s, request)
        self._add_tokens(case, who)
        for histogram, value in self._values(case):
            if value is not None:
                histogram.observe(who, value, request)

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
            yield counted.family()
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

    def _count_tokens(self) -> None:
        self._tokens = {
            "prompt": self._counter("prompt_tokens", "Prompt tokens, cached ones included."),
            "cached": self._counter("cached_tokens", "Prompt tokens taken from the cache."),
            "completion": self._counter("completion_tokens", "Generated tokens."),
            "drafted": self._counter("drafted_tokens", "Tokens drafted by speculation."),
            "accepted": self._counter("accepted_tokens", "Drafted tokens that were taken."),
        }

    def _measure(self) -> None:
        self._whole = self._histogram("request_seconds", "From first byte to last.", REQUEST_S)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_S
        )
        self._queue = self._histogram("queue_seconds", "Waiting in the engine.", WAIT_S)
        self._load = self._histogram("load_seconds", "Loading the model.", WAIT_S)
        self._prefill = self._histogram("prefill_seconds", "Reading the prompt.", FIRST_TOKEN_S)
        self._token = self._histogram(
            "time_per_output_token_seconds", "Decode time of one token after the first.", TOKEN_S
        )
        self._decode_tps = self._histogram(
            "decode_tokens_per_second", "Decode rate of a request.", DECODE_TPS
        )
        self._prefill_tps = self._histogram(
            "prefill_tokens_per_second", "Prompt tokens computed per second.", PREFILL_TPS
        )
        self._of_expected = self._histogram(
            "decode_of_expected_ratio", "Decode rate by the rate to expect here.", OF_EXPECTED
        )
        self._proxy = self._histogram("proxy_seconds", "Held by slowtok itself.", PROXY_S)

    def _counter(self, name: str, said: str, *labels: str) -> Counter:
        counter = Counter(f"slowtok_{name}", said, (*_OF, *labels))
        self._families.append(counter)
        return counter

    def _histogram(self, name: str, said: str, bounds: Iterable[float]) -> Histogram:
        histogram = Histogram(f"slowtok_{name}", said, _OF, bounds)
        self._families.append(histogram)
        return histogram

    def _add_tokens(self, case: Case, who: tuple[str, str]) -> None:
        for name, counter in self._tokens.items():
            count = getattr(case.timeline.tokens, name)
            if count is not None:
                counter.inc(who, count)

    def _values(self, case: Case) -> Iterator[tuple[Histogram, float | None]]:
        """Yield what was measured; what was only estimated is left out."""
        phases, expected_tps = case.phases, case.envelope.expected_tps
        yield self._whole, phases.total_s
        yield self._first, phases.ttft_s
        yield self._queue, phases.queue_s
        yield self._load, phases.load_s
        yield self._proxy, case.timeline.proxy_s
        if phases.source == "estimate":
            return
        decode_tps = phases.decode_tps
        yield self._prefill, phases.prefill_s
        yield self._prefill_tps, phases.prefill_tps
        yield self._decode_tps, decode_tps
        yield self._token, 1 / decode_tps if decode_tps else None
        if decode_tps is not None and expected_tps:
            yield self._of_expected, decode_tps / expected_tps


class _Only:
    """One metric to be written."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield it."""
        yield self._metric
