"""Counters and histograms in plain cells, for what is counted with every request.

The library's own take a lock and check the exemplar each time, several times the work. Here one
event loop counts, and the library writes down what was counted when somebody asks for it.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import INF, floatToGoString

Labels = tuple[str, ...]


class Request(NamedTuple):
    """What is told of the last request in a cell: its id, and when it was counted."""

    id: str
    at_unix_s: float


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

    def family(self) -> CounterMetricFamily:
        """Return all of it, for the library to write down."""
        name, said, names = self._empty
        family = CounterMetricFamily(name, said, labels=names)
        for labels, total in self._sums.items():
            last = self._last.get(labels)
            family.add_metric(labels, total, exemplar=last and _exemplar(*last))
        return family


class _Spread:
    """How many values fell into each bucket, for one set of labels."""

    __slots__ = ("counts", "last", "total")

    def __init__(self, buckets: int) -> None:
        self.total = 0.0
        self.counts = [0] * buckets
        self.last: list[tuple[Request, float] | None] = [None] * buckets


class Histogram:
    """How many values fell between two of the `bounds`, for each set of labels."""

    def __init__(self, name: str, said: str, labels: Labels, bounds: Iterable[float]) -> None:
        self._empty = (name, said, labels)
        self._bounds = (*bounds, INF)
        self._spreads: dict[Labels, _Spread] = {}

    def observe(self, labels: Labels, value: float, request: Request) -> None:
        """Count a value; `request` becomes the exemplar of its bucket."""
        spread = self._spreads.get(labels)
        if spread is None:
            spread = self._spreads[labels] = _Spread(len(self._bounds))
        bucket = bisect_left(self._bounds, value)  # a bound belongs to the bucket below it
        spread.total += value
        spread.counts[bucket] += 1
        spread.last[bucket] = request, value

    def family(self) -> HistogramMetricFamily:
        """Return all of it, for the library to write down."""
        name, said, names = self._empty
        family = HistogramMetricFamily(name, said, labels=names)
        for labels, spread in self._spreads.items():
            family.add_metric(labels, list(self._buckets(spread)), spread.total)
        return family

    def _buckets(
        self, spread: _Spread
    ) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        """Yield each bound with how many values were at most that."""
        at_most = itertools.accumulate(spread.counts)
        for bound, count, last in zip(self._bounds, at_most, spread.last, strict=True):
            name = floatToGoString(bound)  # type: ignore[no-untyped-call]
            yield (name, count) if last is None else (name, count, _exemplar(*last))


def _exemplar(request: Request, value: float) -> Exemplar:
    return Exemplar({"request_id": request.id}, value, request.at_unix_s)
