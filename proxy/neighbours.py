"""Who else was at the engine: other requests during the queue and the decode of one."""

import statistics
from collections.abc import Iterable
from dataclasses import replace

from slowtok.detectors.case import Neighbours, Phases
from slowtok.proxy.exchange import Exchange
from slowtok.proxy.servers.slots import SlotLog


def count_neighbours(
    mine: Exchange, phases: Phases, others: Iterable[Exchange], now_s: float
) -> Neighbours:
    """Count the other generations that `mine` met at its engine.

    A neighbour counts in my decode from its own first token on (from its sending where it was not
    streamed): before that it may itself have been waiting.
    """
    met = [
        o
        for o in others
        if o is not mine and o.engine_name == mine.engine_name and o.api and o.sent_at_s is not None
    ]
    sent_at_s = mine.sent_at_s
    if sent_at_s is None:
        return Neighbours()
    waited = (sent_at_s, phases.prefill_from_at_s or sent_at_s)
    decoded = _window(phases.decode_from_at_s, phases.decode_to_at_s)
    present = [(o.sent_at_s or 0.0, _end(o, now_s)) for o in met]
    decoding = [(_first(o, now_s), _end(o, now_s)) for o in met]
    overlaps = [_overlap(decoded, span) for span in decoding]
    return Neighbours(
        in_flight_at_send=sum(begin <= sent_at_s < end for begin, end in present),
        queue_mean=_mean([_overlap(waited, span) for span in present], waited),
        decode_mean=_mean(overlaps, decoded),
        decode_max=_most_at_once(decoding, decoded),
    )


def with_slots(known: Neighbours, phases: Phases, slots: SlotLog) -> Neighbours:
    """Add the neighbours that only the engine's own slots show: they did not come through here."""
    looks = slots.window(*_window(phases.decode_from_at_s, phases.decode_to_at_s))
    others = [max(look.busy - 1, 0) for look in looks]  # one of the slots is mine
    if not others:
        return known
    return replace(
        known,
        decode_mean=max(known.decode_mean, statistics.fmean(others)),
        decode_max=max(known.decode_max, *others),
    )


def _window(begin_s: float | None, end_s: float | None) -> tuple[float, float]:
    """Return both ends, or an empty window where one of them is not known."""
    return (0.0, 0.0) if begin_s is None or end_s is None else (begin_s, end_s)


def _first(other: Exchange, now_s: float) -> float:
    meter = other.meter
    if not other.stream:
        return other.sent_at_s or now_s
    return meter.first_at_s if meter and meter.first_at_s is not None else now_s


def _end(other: Exchange, now_s: float) -> float:
    return other.last_byte_at_s or other.ended_at_s or now_s


def _overlap(a: tuple[float, float], b: tuple[float, float]) -> float:
    return max(min(a[1], b[1]) - max(a[0], b[0]), 0.0)


def _mean(overlaps: list[float], window: tuple[float, float]) -> float:
    length = window[1] - window[0]
    return sum(overlaps) / length if length > 0 else 0.0


def _most_at_once(spans: list[tuple[float, float]], window: tuple[float, float]) -> int:
    inside = [(max(a, window[0]), min(b, window[1])) for a, b in spans]
    inside = [(a, b) for a, b in inside if b > a]
    return max((sum(a <= begin < b for a, b in inside) for begin, _ in inside), default=0)
