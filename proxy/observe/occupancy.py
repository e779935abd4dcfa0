"""Occupancies: the time that each generation of this proxy spent at its engine."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from slowtok.proxy.relay.exchange import Exchange

KEEP_ENDED = 256


class Occupancy(NamedTuple):
    """When a generation was sent, had its first token, and ended, with its request id.

    A neighbour decodes from its first token on (from its sending if it was not streamed): before
    that it may have been waiting.
    """

    sent_s: float
    first_s: float
    end_s: float
    request_id: str = ""


_Ended = tuple[float, str, str | None, Occupancy]
"""End of a request, its id, its engine and its occupancy. The occupancy may have ended long before,
while a slow client was still reading."""


class OccupancyLog:
    """The occupancies of ended generations; those in flight are passed in."""

    def __init__(self) -> None:
        self._ended: deque[_Ended] = deque(maxlen=KEEP_ENDED)

    def note(self, exchange: Exchange, now_s: float) -> None:
        """Keep the occupancy of a request that has ended."""
        for occupancy in _occupancies((exchange,), exchange.engine_name, now_s):
            self._ended.append((now_s, exchange.request_id, exchange.engine_name, occupancy))

    def overlapping(
        self, exchange: Exchange, live: Iterable[Exchange], now_s: float
    ) -> list[Occupancy]:
        """Return the other occupancies at its engine: those `live`, or ended after it arrived."""
        engine_name, since_s = exchange.engine_name, exchange.accepted_at_s
        others = _occupancies(live, engine_name, now_s, excluding=exchange)
        for noted_at_s, request_id, name, other in reversed(self._ended):
            if noted_at_s < since_s:
                break
            if other[2] >= since_s and name == engine_name and request_id != exchange.request_id:
                others.append(other)
        return others


def _occupancies(
    exchanges: Iterable[Exchange],
    engine_name: str | None,
    now_s: float,
    *,
    excluding: Exchange | None = None,
) -> list[Occupancy]:
    """Return the occupancies of `exchanges` at one engine; unsent requests have none.

    One plain loop, because each whole reply has dozens of neighbours.
    """
    occupancies = []
    for exchange in exchanges:
        first_s = sent_s = exchange.sent_at_s
        if sent_s is None or exchange.engine_name != engine_name:
            continue
        if exchange.api is None or exchange is excluding:
            continue
        if exchange.stream:
            first_s = exchange.meter.first_at_s if exchange.meter else None
        end_s = exchange.last_byte_at_s or exchange.ended_at_s or now_s
        begun_s = now_s if first_s is None else first_s
        occupancies.append(Occupancy(sent_s, begun_s, end_s, exchange.request_id))
    return occupancies


def in_flight_at(at_s: float | None, others: Iterable[Occupancy]) -> int:
    """Count the generations at the engine at one moment; 0 for no moment."""
    if at_s is None:
        return 0
    return sum([sent_s <= at_s < end_s for sent_s, _, end_s, _ in others])
