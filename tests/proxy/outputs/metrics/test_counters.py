"""Counted in plain cells, written down as if the library had counted."""

from collections.abc import Callable, Iterator
from unittest.mock import patch

import prometheus_client as library
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.registry import Collector

from slowtok.proxy.outputs.metrics.counters import Counter, Histograms, MetricCounters

AT_S = 1795190354.25
BOUNDS = (0.1, 1, 2.5, 10_000)
KINDS = st.sampled_from(["ollama", "vllm", 'a"b\n'])
AMOUNTS = st.floats(0, 1e9) | st.sampled_from(BOUNDS) | st.integers(0, 9)


class Families(Collector):
    """What the library writes down; when a series began is not told."""

    def __init__(self, *made: Metric) -> None:
        self._made = made

    def collect(self) -> Iterator[Metric]:
        """Yield each family."""
        for metric in self._made:
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


def one(counted: Collector) -> Metric:
    [metric] = counted.collect()
    return metric


@pytest.mark.parametrize("written", [generate_latest, open_metrics])
@given(counted=st.lists(st.tuples(KINDS, AMOUNTS, st.text("0123-", max_size=36))))
def test_all_is_as_the_library_would_have_counted_it(
    written: Callable[[Collector], bytes], counted: list[tuple[str, float, str]]
) -> None:
    own = Counter("n", "How many.", ("kind",)), Histograms(("kind",), ("s", "How long.", BOUNDS))
    theirs = (
        library.Counter("n", "How many.", ("kind",), registry=None),
        library.Histogram("s", "How long.", ("kind",), buckets=BOUNDS, registry=None),
    )
    with patch("time.time", lambda: AT_S):
        for kind, amount, request_id in counted:
            request, exemplar = (request_id, AT_S), {"request_id": request_id}
            own[0].inc((kind,), amount, request)
            own[1].observe((kind,), (amount,), request)
            theirs[0].labels(kind).inc(amount, exemplar)
            theirs[1].labels(kind).observe(amount, exemplar)

    expected = written(Families(*map(one, theirs)))
    assert (
        written(Families(*[family for counted in own for family in counted.families()])) == expected
    )


def test_counter_without_a_request_has_no_exemplar() -> None:
    counter = Counter("n", "How many.", ("kind",))
    counter.inc(("vllm",))
    counter.inc(("vllm",), 2)

    [family] = counter.families()
    [sample] = family.samples
    assert (sample.value, sample.exemplar) == (3.0, None)


def test_what_is_not_known_is_not_counted() -> None:
    counters = MetricCounters(("kind",), ("a", "How many."), ("b", "How many."))
    counters.inc(("vllm",), (2, None))
    counters.inc(("vllm",), (0, None))
    histograms = Histograms(("kind",), ("s", "How long.", BOUNDS), ("t", "How long.", BOUNDS))
    histograms.observe(("vllm",), (None, 0.1), ("id", AT_S))

    counted = [[sample.value for sample in family.samples] for family in counters.families()]
    assert counted == [[2.0], []]
    seen = [[sample.value for sample in family.samples] for family in histograms.families()]
    assert seen == [[], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]]
