"""Counters and histograms in plain cells, for what is counted with every request.

The library's own take a lock and check the exemplar each time, several times the work. Here one
event loop counts, and the library writes down what was counted when somebody asks for it.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import INF, floatToGoString

Labels = tuple[str, ...]
Request = tuple[str, float]
"""What is told of the last request in a cell: its id, and when it was counted (Unix seconds)."""


class Counter:
    """A sum for each set of labels."""

    def __init__(self, name: str, said: str, labels: Labels) -> None:
        self._empty = (name, said, labels)
        self._sums: dict[Labels, float] = {}
        self._last: dict[Labels, tuple[Request, float]] = {}

    def inc(self, labels: Labels, amount: float = 1, request: Request | None = None) -> None:
        """Add to the sum of these labels; `request` becomes its exemplar."""
        self._sums[labels] = self._sums.get(labels, 0.0) + amount
        if request is not None:
            self._last[labels] = request, amount

    def families(self) -> Iterator[CounterMetricFamily]:
        """Yield all of it, for the library to write down."""
        name, said, names = self._empty
        family = CounterMetricFamily(name, said, labels=names)
        for labels, total in self._sums.items():
            last = self._last.get(labels)
            family.add_metric(labels, total, exemplar=last and _exemplar(*last))
        yield family


class MetricCounters:
    """Several counters with the same labels, which are looked up once for all; no exemplars."""

    def __init__(self, labels: Labels, *counters: tuple[str, str]) -> None:
        self._names = labels
        self._counters = counters  # the name of each, and what it counts
        self._sums: dict[Labels, list[float | None]] = {}

    def inc(self, labels: Labels, amounts: Sequence[float | None]) -> None:
        """Add an amount to each counter; None adds nothing."""
        sums = self._sums.get(labels)
        if sums is None:
            sums = self._sums[labels] = [None] * len(self._counters)
        for i, amount in enumerate(amounts):
            if amount is not None:
                sums[i] = (sums[i] or 0.0) + amount

    def families(self) -> Iterator[CounterMetricFamily]:
        """Yield each counter with what was added to, for the library to write down."""
        for i, (name, said) in enumerate(self._counters):
            family = CounterMetricFamily(name, said, labels=self._names)
            for labels, sums in self._sums.items():
                if (total := sums[i]) is not None:
                    family.add_metric(labels, total)
            yield family


class _Spread:
    """How many values fell between two of the `bounds`, for one set of labels."""

    __slots__ = ("bounds", "counts", "last", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self.counts = [0] * len(bounds)
        self.last: list[tuple[Request, float] | None] = [None] * len(bounds)


class Histograms:
    """Several histograms with the same labels, which are looked up once for all."""

    def __init__(self, labels: Labels, *histograms: tuple[str, str, Iterable[float]]) -> None:
        self._names = labels
        self._told = [(name, said) for name, said, _ in histograms]
        self._bounds = [(*bounds, INF) for _, _, bounds in histograms]
        self._spreads: dict[Labels, list[_Spread]] = {}

    def observe(self, labels: Labels, values: Sequence[float | None], request: Request) -> None:
        """Count a value in each histogram, None in none; `request` is their buckets' exemplar."""
        spreads = self._spreads.get(labels)
        if spreads is None:
            spreads = self._spreads[labels] = [_Spread(bounds) for bounds in self._bounds]
        for i, value in enumerate(values):
            if value is not None:
                spread = spreads[i]
                bucket = bisect_left(spread.bounds, value)  # a bound belongs to the bucket below
                spread.total += value
                spread.counts[bucket] += 1
                spread.last[bucket] = request, value

    def families(self) -> Iterator[HistogramMetricFamily]:
        """Yield each histogram with what was observed, for the library to write down."""
        for i, (name, said) in enumerate(self._told):
            family = HistogramMetricFamily(name, said, labels=self._names)
            for labels, spreads in self._spreads.items():
                if any(spreads[i].counts):
                    family.add_metric(labels, list(_buckets(spreads[i])), spreads[i].total)
            yield family


def _buckets(spread: _Spread) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Yield each bound with how many values were at most that."""
    at_most = itertools.accumulate(spread.counts)
    for bound, count, last in zip(spread.bounds, at_most, spread.last, strict=True):
        name = floatToGoString(bound)  # type: ignore[no-untyped-call]
        yield (name, count) if last is None else (name, count, _exemplar(*last))


def _exemplar(request: Request, value: float) -> Exemplar:
    request_id, at_unix_s = request
    return Exemplar({"request_id": request_id}, value, at_unix_s)
