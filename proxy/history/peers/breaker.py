"""A circuit breaker: a store that has just failed is asked again after a pause that doubles."""

from collections.abc import Callable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0


class Breaker:
    """Closed while all goes well; open for a while after each failure."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._pause_s = 0.0
        self._until_s = 0.0

    @property
    def left_s(self) -> float:
        """How long nothing is to be tried; 0 where it may be."""
        return max(self._until_s - self._now_s(), 0.0) if self._pause_s else 0.0

    def succeeded(self) -> None:
        """Close it."""
        self._pause_s = 0.0

    def failed(self) -> None:
        """Open it, for twice as long as before."""
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._until_s = self._now_s() + self._pause_s
