"""A listener's queue: it never waits, loses the oldest, and says so."""

from slowtok.proxy.outputs.events import EventListener, written


def event(number: int) -> bytes:
    return written("record", {"n": number})


async def test_events_come_in_order() -> None:
    listener = EventListener()
    lost = [listener.put(event(n)) for n in range(3)]

    assert lost == [0, 0, 0]
    assert listener.some.is_set()
    assert listener.take() == event(0) + event(1) + event(2)
    assert not listener.some.is_set()
    assert listener.take() == b""


async def test_slow_listener_loses_the_oldest_and_is_told_how_many() -> None:
    listener = EventListener(most=2)
    lost = [listener.put(event(n)) for n in range(5)]

    assert lost == [0, 0, 1, 1, 1]
    assert listener.take() == written("lost", {"events": 3}) + event(3) + event(4)
    listener.put(event(5))
    assert listener.take() == event(5)


def test_one_event_is_one_line_of_data() -> None:
    text = written("record", {"model": "a\nb\r\n", "summary": "data: x"})

    assert text.count(b"\n") == 3
    assert text.startswith(b"event: record\ndata: {")
    assert text.endswith(b"}\n\n")
