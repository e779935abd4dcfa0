"""Occupancies: when each generation was at its engine, of those that came through this proxy."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from slowtok.proxy.relay.exchange import Exchange

KEEP_ENDED = 256


class Occupancy(NamedTuple):
    """One generation's time at its engine: its sending, first token and end, and which one it was.

    A neighbour decodes from its own first token on (from its sending where it was not streamed):
    before that it may itself have been waiting.
    """

    sent_s: float
    first_s: float
    end_s: float
    request_id: str = ""


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
