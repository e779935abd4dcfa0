"""Who else was at the engine: other requests during the queue and the decode of one."""

import statistics
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from slowtok.detectors.case import Neighbours, Phases
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.servers.slots import SlotLog

MIN_LOOKS = 2  # at the slots; fewer say little about a mean


class Stay(NamedTuple):
    """One generation's time at its engine; `first_s` is its first token where it streamed."""

    engine_name: str | None
    sent_s: float
    first_s: float
    end_s: float


def stay_of(exchange: Exchange, now_s: float) -> Stay | None:
    """Return the stay of a generation, so far or in the end; None for what was never sent.

    A neighbour decodes from its own first token on (from its sending where it was not streamed):
    before that it may itself have been waiting.
    """
    if exchange.api is None or exchange.sent_at_s is None:
        return None
    meter = exchange.meter
    first_s = exchange.sent_at_s
    if exchange.stream:
        first_s = meter.first_at_s if meter and meter.first_at_s is not None else now_s
    end_s = exchange.last_byte_at_s or exchange.ended_at_s or now_s
    return Stay(exchange.engine_name, exchange.sent_at_s, first_s, end_s)


def in_flight_at(engine_name: str | None, at_s: float, stays: Iterable[Stay]) -> int:
    """Count the generations that were at an engine at one moment."""
    return sum([s.engine_name == engine_name and s.sent_s <= at_s < s.end_s for s in stays])


def count_neighbours(
    engine_name: str | None, sent_at_s: float | None, phases: Phases, others: Iterable[Stay]
) -> Neighbours:
    """Count the other generations that a request met at its engine."""
    if sent_at_s is None:
        return Neighbours()
    met = [stay for stay in others if stay.engine_name == engine_name]
    from_s, to_s = _window(phases)
    spans = [
        (max(stay.first_s, from_s), min(stay.end_s, to_s))
        for stay in met
        if stay.first_s < to_s and stay.end_s > from_s
    ]
    return Neighbours(
        in_flight_at_send=in_flight_at(engine_name, sent_at_s, met),
        decode_mean=sum([b - a for a, b in spans]) / (to_s - from_s) if to_s > from_s else 0.0,
        decode_max=_most_at_once(spans),
    )


def with_slots(
    guessed: Neighbours, phases: Phases, log: SlotLog, *, slots: int | None, mine: int
) -> Neighbours:
    """Let the engine's own slots say how many decoded: they show, too, what did not come by us.

    Args:
        guessed: the count from the proxy's own requests, some of which may only have waited.
        phases: when the request decoded.
        log: the looks at the slots.
        slots: how many the engine has; a guess beyond the others of them is cut.
        mine: slots that the request itself took (n > 1 takes several).
    """
    looks = log.window(*_window(phases))
    if len(looks) >= MIN_LOOKS:
        others = [max(look.busy - mine, 0) for look in looks]
        return replace(guessed, decode_mean=statistics.fmean(others), decode_max=max(others))
    if slots is None:
        return guessed
    most = max(slots - mine, 0)
    return replace(
        guessed,
        decode_mean=min(guessed.decode_mean, float(most)),
        decode_max=min(guessed.decode_max, most),
    )


def _window(phases: Phases) -> tuple[float, float]:
    """Return both ends of the decode, or an empty window where one of them is not known."""
    begin_s, end_s = phases.decode_from_at_s, phases.decode_to_at_s
    return (0.0, 0.0) if begin_s is None or end_s is None else (begin_s, end_s)


def _most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many spans cover one moment at most; it is one at which one of them begins."""
    within = [(a, b) for a, b in spans if b > a]
    begins, ends = sorted(a for a, _ in within), sorted(b for _, b in within)
    return max((i + 1 - bisect_right(ends, a) for i, a in enumerate(begins)), default=0)
