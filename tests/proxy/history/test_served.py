"""What an engine process has served before."""

from dataclasses import replace

from fakes.cases import healthy, with_server, with_timeline, with_tokens
from slowtok.proxy.history.history import MAX_PROCESSES, Before, Served

SHORT, LONG = healthy(), with_tokens(healthy(), prompt=9000, cached=0)


def test_requests_are_counted_by_process_and_by_length() -> None:
    served = Served()
    assert served.before(SHORT) is None

    served.note(SHORT)
    served.note(SHORT)

    assert served.before(SHORT) == Before(2, 2)
    assert served.before(LONG) == Before(2, 0)
    assert served.before(with_server(SHORT, pid=4712)) is None


def test_a_process_that_is_not_seen_is_another_once_it_was_found_again() -> None:
    hidden = with_server(SHORT, pid=None, uptime_s=600.0)
    later = with_timeline(hidden, accepted_at_s=hidden.timeline.accepted_at_s + 60.0)
    served = Served()
    served.note(hidden)

    assert served.before(later) == Before(1, 1)
    assert served.before(with_server(later, uptime_s=10.0)) is None


def test_what_failed_or_was_cut_off_counts_for_nothing() -> None:
    served = Served()
    served.note(with_timeline(SHORT, status=500))
    served.note(with_tokens(SHORT, completion=None))

    assert served.before(SHORT) is None


def test_memory_is_bounded() -> None:
    served = Served()
    for pid in range(MAX_PROCESSES + 1):
        served.note(replace(with_server(SHORT, pid=pid)))

    assert served.before(with_server(SHORT, pid=0)) is None
    assert served.before(with_server(SHORT, pid=1)) is not None
