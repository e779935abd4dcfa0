from slowtok.proxy.sampling.schedule import Every


def test_not_due_before_its_time() -> None:
    every = Every(0.2, from_s=100.0)
    assert every.due(100.0)

    assert not every.due(100.1)
    assert every.next_at_s == 100.2


def test_being_late_moves_nothing() -> None:
    every = Every(1.0, from_s=100.0)

    assert [every.due(at_s) for at_s in (100.0, 101.3, 102.0, 103.9)] == [True] * 4
    assert every.next_at_s == 104.0
    assert every.missed == 0


def test_times_that_passed_are_counted_and_not_made_up_for() -> None:
    every = Every(1.0, from_s=100.0)
    every.due(100.0)

    assert every.due(104.5)
    assert not every.due(104.6)
    assert every.missed == 3


def test_restart_is_due_at_once_on_a_new_grid() -> None:
    every = Every(2.0, from_s=100.0)
    every.due(100.0)
    every.restart(0.2, from_s=100.7)

    assert every.due(100.7)
    assert every.next_at_s == 100.9
