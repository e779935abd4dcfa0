"""Who else was at the engine: other requests during the queue and the decode of one."""

import statistics
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
    return sum(s.engine_name == engine_name and s.sent_s <= at_s < s.end_s for s in stays)


def count_neighbours(
    engine_name: str | None, sent_at_s: float | None, phases: Phases, others: Iterable[Stay]
) -> Neighbours:
    """Count the other generations that a request met at its engine."""
    if sent_at_s is None:
        return Neighbours()
    met = [stay for stay in others if stay.engine_name == engine_name]
    decoded = _window(phases)
    decoding = [(stay.first_s, stay.end_s) for stay in met]
    return Neighbours(
        in_flight_at_send=in_flight_at(engine_name, sent_at_s, met),
        decode_mean=_mean([_overlap(decoded, span) for span in decoding], decoded),
        decode_max=_most_at_once(decoding, decoded),
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


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0.0)


def _mean(overlaps: list[float], window: tuple[float, float]) -> float:
    length = window[1] - window[0]
    return sum(overlaps) / length if length > 0 else 0.0


def _most_at_once(spans: list[tuple[float, float]], window: tuple[float, float]) -> int:
    inside = [(max(a, window[0]), min(b, window[1])) for a, b in spans]
    inside = [(a, b) for a, b in inside if b > a]
    return max((sum(a <= begin < b for a, b in inside) for begin, _ in inside), default=0)
