"""Fixed rates without drift: what is due now, and when something is due next. Pure."""

NEAR_S = 0.01
"""Grids that began together may differ by a rounding error: what is this near counts as due."""


class Every:
    """Something due every `period_s` seconds, counted from where it was started.

    Being late moves nothing: the next time stays on the grid, and times that passed unused are
    counted in `missed` and not made up for.
    """

    def __init__(self, period_s: float, from_s: float) -> None:
        self.missed = 0
        self.restart(period_s, from_s)

    def restart(self, period_s: float, from_s: float) -> None:
        """Begin a new grid that is due at once."""
        self._period_s = period_s
        self.next_at_s = from_s

    def due(self, now_s: float) -> bool:
        """Return True if it is time, and if so step to the next time after `now_s`."""
        if now_s < self.next_at_s:
            return False
        passed = int((now_s - self.next_at_s) / self._period_s)
        self.missed += passed
        self.next_at_s += (passed + 1) * self._period_s
        return True
