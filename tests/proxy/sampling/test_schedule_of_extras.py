"""When the costliest readings are due; time is data."""

from dataclasses import replace

from slowtok.proxy.sampling.budget import SamplingPace
from slowtok.proxy.sampling.schedule import Extras, ExtrasDue

NONE = Extras(energy=False, lists=False, shares=False, traffic=None)
SLOW = SamplingPace(traffic_s=2.0, energy_s=60.0, shares_s=10.0, lists_s=5.0)


def test_at_full_pace_traffic_is_counted_without_a_gap() -> None:
    due = ExtrasDue(SamplingPace(), 100.0)

    assert due.take(100.0, slow_tier=True) == Extras(traffic="steady")
    assert due.take(100.1, slow_tier=False) == NONE._replace(traffic="steady")
    assert due.take(101.0, slow_tier=True) == Extras(energy=False, traffic="steady")


def test_slowed_each_has_its_own_period() -> None:
    due = ExtrasDue(SamplingPace(), 90.0)
    due.keep_to(SLOW, 100.0)
    taken = {at_s: due.take(float(at_s), slow_tier=True) for at_s in range(100, 161)}

    assert taken[100] == NONE  # what was too slow_tier is not done at once
    assert [at_s for at_s, extras in taken.items() if extras.traffic] == list(range(102, 161, 2))
    assert [at_s for at_s, extras in taken.items() if extras.lists] == list(range(105, 161, 5))
    assert [at_s for at_s, extras in taken.items() if extras.shares] == list(range(110, 161, 10))
    assert [at_s for at_s, extras in taken.items() if extras.energy] == [160]


def test_shares_come_with_a_list_of_the_processes_they_are_of() -> None:
    due = ExtrasDue(SamplingPace(), 90.0)
    due.keep_to(replace(SLOW, shares_s=5.0, lists_s=2.0), 100.0)
    taken = {at_s: due.take(float(at_s), slow_tier=True) for at_s in range(100, 121)}

    assert [at_s for at_s, extras in taken.items() if extras.shares] == [105, 110, 115, 120]
    assert all(extras.lists for extras in taken.values() if extras.shares)


def test_a_request_that_begins_has_all_but_the_shares() -> None:
    due = ExtrasDue(SamplingPace(), 90.0)
    due.keep_to(SLOW, 100.0)
    due.begin(101.0)

    assert due.take(101.0, slow_tier=True) == Extras(shares=False, traffic="burst")


def test_an_edge_has_its_counters_at_any_pace() -> None:
    due = ExtrasDue(SLOW, 100.0)
    due.keep_to(SLOW, 100.0)

    assert due.at_edge(100.5) == Extras(shares=False, traffic=None)
    assert due.at_edge(110.0) == Extras(shares=True, traffic=None)
