"""Schedules: fixed rates without drift, and rates of readings too costly for a tier. Pure."""

from typing import Literal, NamedTuple

from slowtok.proxy.sampling.budget import SamplingPace

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


Traffic = Literal["steady", "burst"]


class Extras(NamedTuple):
    """Which readings of GPUs are due that cost so much that each has a rate of its own.

    `traffic` is the PCIe counters: `steady` compares each sample with the one before, `burst`
    counts for 0.05 s from now and tells it with the next sample. The others come with samples of
    the 1 Hz tier alone.
    """

    energy: bool = True
    lists: bool = True
    shares: bool = True
    traffic: Traffic | None = "steady"


ALL = Extras()


class ExtrasDue:
    """Says when each reading that has a rate of its own is due. Pure: time is data."""

    def __init__(self, pace: SamplingPace, now_s: float) -> None:
        self._energy, self._lists = Every(pace.energy_s, now_s), Every(pace.lists_s, now_s)
        self._shares, self._traffic = Every(pace.shares_s, now_s), Every(1.0, now_s)
        self._pace = pace

    def keep_to(self, pace: SamplingPace, now_s: float) -> None:
        """Change the pace; nothing is due at once."""
        self._pace = pace
        for every, period_s in self._periods():
            every.restart(period_s, now_s + period_s)

    def begin(self, now_s: float) -> None:
        """Have all due at once, for a request that begins; but not the shares, which cost most."""
        for every, period_s in self._periods():
            if every is not self._shares:
                every.restart(period_s, now_s)

    def take(self, now_s: float, *, slow_tier: bool) -> Extras:
        """Return what is due now; `slow_tier` says that this is a sample of the 1 Hz tier."""
        near_s = now_s + NEAR_S
        lists = slow_tier and self._lists.due(near_s)
        shares = slow_tier and self._shares.due(near_s)
        return Extras(
            energy=slow_tier and self._energy.due(near_s),
            lists=lists or shares,  # shares are of the processes that are listed
            shares=shares,
            traffic=self._take_traffic(near_s),
        )

    def at_edge(self, now_s: float) -> Extras:
        """Return what a request's edge has: its counters, exactly, and who holds memory."""
        shares = self._shares.due(now_s + NEAR_S)
        return Extras(shares=shares, traffic=None if self._pace.traffic_s else "steady")

    def _take_traffic(self, near_s: float) -> Traffic | None:
        if not self._pace.traffic_s:
            return "steady"
        return "burst" if self._traffic.due(near_s) else None

    def _periods(self) -> tuple[tuple[Every, float], ...]:
        pace = self._pace
        return (
            (self._energy, pace.energy_s),
            (self._lists, pace.lists_s),
            (self._shares, pace.shares_s),
            (self._traffic, pace.traffic_s or 1.0),
        )
