"""Others at an engine while a request decoded, and how many of them decoded, too."""

import statistics
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slowtok.detectors.case.case import Neighbours, Phases
from slowtok.proxy.observe.concurrency import Look, Occupancy
from slowtok.proxy.relay.exchange import Exchange

KEEP_ENDED = 256
MIN_LOOKS = 2  # at the engine; fewer say little about a mean


_Ended = tuple[float, str, str | None, Occupancy]
"""When a request was over, which one it was, its engine and its occupancy, which may have ended
long before: a slow client was still reading."""


class OccupancyLog:
    """When generations were at their engines: those that have ended, beside those on their way."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=KEEP_ENDED)

    def note(self, exchange: Exchange, now_s: float) -> None:
        """Keep the occupancy of a request that has ended."""
        for occupancy in _occupancies((exchange,), exchange.engine_name, now_s):
            self._ended.append((now_s, exchange.request_id, exchange.engine_name, occupancy))

    def beside(self, mine: Exchange, live: Iterable[Exchange], now_s: float) -> list[Occupancy]:
        """Return the others at its engine that are `live` or ended after `mine` came."""
        engine_name, since_s = mine.engine_name, mine.accepted_at_s
        others = _occupancies(live, engine_name, now_s, but=mine)
        for noted_at_s, request_id, name, other in reversed(self._ended):
            if noted_at_s < since_s:
                break
            if other[2] >= since_s and name == engine_name and request_id != mine.request_id:
                others.append(other)
        return others


def _occupancies(
    exchanges: Iterable[Exchange],
    engine_name: str | None,
    now_s: float,
    *,
    but: Exchange | None = None,
) -> list[Occupancy]:
    """Return who is or was at one engine; what was never sent was not.

    In one loop: each whole reply meets dozens.
    """
    found = []
    for exchange in exchanges:
        first_s = sent_s = exchange.sent_at_s
        if sent_s is None or exchange.engine_name != engine_name:
            continue
        if exchange.api is None or exchange is but:
            continue
        if exchange.stream:
            first_s = exchange.meter.first_at_s if exchange.meter else None
        end_s = exchange.last_byte_at_s or exchange.ended_at_s or now_s
        begun_s = now_s if first_s is None else first_s
        found.append(Occupancy(sent_s, begun_s, end_s, exchange.request_id))
    return found


def in_flight_at(at_s: float | None, others: Iterable[Occupancy]) -> int:
    """Count the generations that were there at one moment; nobody is met at none."""
    if at_s is None:
        return 0
    return sum([sent_s <= at_s < end_s for sent_s, _, end_s, _ in others])


def count_neighbours(
    in_flight_at_send: int, phases: Phases, others: Sequence[Occupancy]
) -> Neighbours:
    """Count the other generations that a request met at its engine."""
    from_s, to_s = _window(phases)
    if from_s >= to_s:
        return Neighbours(in_flight_at_send=in_flight_at_send)
    throughout, there, partly_s = 0, 0, 0.0
    begins, ends = [], []
    for _, first_s, end_s, _ in others:
        if end_s <= from_s or first_s >= to_s or first_s >= end_s:
            continue
        if first_s > from_s:
            begin_s = first_s
            begins.append(first_s)
        else:
            there += 1
            if end_s >= to_s:
                throughout += 1
                continue
            begin_s = from_s
        if end_s < to_s:
            ends.append(end_s)
            partly_s += end_s - begin_s
        else:
            partly_s += to_s - begin_s
    return Neighbours(
        in_flight_at_send=in_flight_at_send,
        decode_mean=throughout + partly_s / (to_s - from_s),
        decode_max=_most_at_once(there, begins, ends) if begins else there,
    )


def with_looks(
    guessed: Neighbours, phases: Phases, looks: Sequence[Look], *, slots: int | None, mine: int
) -> Neighbours:
    """Let the engine's own word say how many decoded: it knows, too, what did not come by us.

    Args:
        guessed: the count from the proxy's own requests, some of which may only have waited.
        phases: when the request decoded.
        looks: those at the engine's slots or gauges.
        slots: how many the engine has; a guess beyond the others of them is cut.
        mine: slots that the request itself took (n > 1 takes several).
    """
    from_s, to_s = _window(phases)
    others = [max(look.working - mine, 0) for look in looks if from_s <= look.at_s <= to_s]
    if from_s < to_s and len(others) >= MIN_LOOKS:
        mean = statistics.fmean(others)
        return replace(guessed, decode_mean=mean, decode_max=max(others), counted=True)
    if slots is None:
        return guessed
    most = max(slots - mine, 0)
    if guessed.decode_max <= most and guessed.decode_mean <= most:
        return guessed
    return replace(
        guessed,
        decode_mean=min(guessed.decode_mean, float(most)),
        decode_max=min(guessed.decode_max, most),
    )


def _window(phases: Phases) -> tuple[float, float]:
    """Return both ends of the decode, or an empty window where one of them is not known."""
    begin_s, end_s = phases.decode_from_at_s, phases.decode_to_at_s
    return (0.0, 0.0) if begin_s is None or end_s is None else (begin_s, end_s)


def _most_at_once(there: int, begins: list[float], ends: list[float]) -> int:
    """Return how many are there at one moment at most: at the start, or when one of them begins."""
    most, ends_in_order = there, sorted(ends)
    for begun, begin_s in enumerate(sorted(begins), there + 1):
        most = max(most, begun - bisect_right(ends_in_order, begin_s))
    return most
