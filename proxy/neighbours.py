"""Who else was at the engine: other requests during the queue and the decode of one."""

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
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


def met_at(engine_name: str | None, stays: Iterable[Stay]) -> list[Stay]:
    """Return the stays at one engine."""
    return [stay for stay in stays if stay.engine_name == engine_name]


def in_flight_at(at_s: float | None, met: Iterable[Stay]) -> int:
    """Count the generations that were there at one moment; nobody is met at none."""
    if at_s is None:
        return 0
    return sum([sent_s <= at_s < end_s for _, sent_s, _, end_s in met])


def count_neighbours(in_flight_at_send: int, phases: Phases, met: Sequence[Stay]) -> Neighbours:
    """Count the other generations that a request met at its engine."""
    from_s, to_s = _window(phases)
    decoding = [
        (first_s, end_s)
        for _, _, first_s, end_s in met
        if first_s < to_s and end_s > from_s and first_s < end_s
    ]
    if from_s >= to_s or not decoding:
        return Neighbours(in_flight_at_send=in_flight_at_send)
    partly = [(max(a, from_s), min(b, to_s)) for a, b in decoding if a > from_s or b < to_s]
    throughout = len(decoding) - len(partly)
    return Neighbours(
        in_flight_at_send=in_flight_at_send,
        decode_mean=throughout + sum([b - a for a, b in partly]) / (to_s - from_s),
        decode_max=throughout + _most_at_once(partly),
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
    from_s, to_s = _window(phases)
    looks = log.window(from_s, to_s) if from_s < to_s else ()
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
    begins, ends = sorted([a for a, _ in spans]), sorted([b for _, b in spans])
    return max([i + 1 - bisect_right(ends, a) for i, a in enumerate(begins)], default=0)
