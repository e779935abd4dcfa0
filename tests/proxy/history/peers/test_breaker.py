"""Pauses between tries."""

from fakes.stores import Clock
from slowtok.proxy.history.peers.breaker import LONGEST_PAUSE_S, Breaker


def test_it_is_closed_at_first() -> None:
    assert Breaker(Clock()).left_s == 0.0


def test_each_failure_doubles_the_pause_up_to_a_limit() -> None:
    clock = Clock()
    breaker, pauses = Breaker(clock), []
    for _ in range(11):
        breaker.failed()
        pauses.append(breaker.left_s)
        clock.now_s += breaker.left_s
        assert breaker.left_s == 0.0

    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_success_begins_anew() -> None:
    breaker = Breaker(Clock())
    breaker.failed()
    breaker.failed()
    breaker.succeeded()
    assert breaker.left_s == 0.0

    breaker.failed()
    assert breaker.left_s == 1.0
