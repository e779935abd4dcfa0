"""What an engine gained around a request, from scrapes made by hand."""

from dataclasses import replace

import pytest

from slowtok.proxy.engines.counters.activity import ActivityLog, Scrape, activity
from slowtok.proxy.engines.counters.metrics import Counters

IDLE = Counters(
    running=0, waiting=0, kv_used_ratio=0.1, finished=10, requests=10, preemptions=0,
    prompt_tokens=1000, cached_tokens=100, queue_s=1.0, prefill_s=2.0,
    decode_s=20.0,
)  # fmt: skip
AT_WORK = replace(IDLE, running=1, kv_used_ratio=0.4)
AFTER = replace(
    IDLE, finished=11, requests=11, prompt_tokens=1200, cached_tokens=150,
    queue_s=1.5, prefill_s=3.0, decode_s=24.0,
)  # fmt: skip


def log_of(*scrapes: tuple[float, Counters], took_s: float = 0.01) -> ActivityLog:
    log = ActivityLog()
    for asked_at_s, counters in scrapes:
        log.note(Scrape(asked_at_s, asked_at_s + took_s, counters))
    return log


@pytest.mark.parametrize(
    "asked_at_s",
    [
        pytest.param((), id="never asked"),
        pytest.param((3.0, 8.0), id="the end alone"),
        pytest.param((1.0, 6.0), id="the begin alone"),
    ],
)
def test_scrapes_that_do_not_enclose_the_request(asked_at_s: tuple[float, ...]) -> None:
    assert log_of(*((at_s, IDLE) for at_s in asked_at_s)).between(2.0, 7.0) is None


def test_restart_of_the_engine_is_not_known() -> None:
    restarted = replace(AFTER, finished=1)

    assert log_of((2.0, IDLE), (7.0, restarted)).between(2.0, 7.0) is None


def test_one_request_alone() -> None:
    found = log_of((0.0, IDLE), (2.0, IDLE), (4.0, AT_WORK), (7.1, AFTER)).between(2.0, 7.0)

    assert found is not None
    assert found.span_s == pytest.approx(5.1)
    assert (found.alone, found.running_max) == (True, 1)
    assert (found.kv_used_max_ratio, found.preemptions) == (0.4, 0)
    assert (found.prompt_tokens, found.cached_tokens) == (200, 50)
    assert (found.queue_s, found.prefill_s, found.decode_s) == (0.5, 1.0, 4.0)
    assert (found.drafted, found.accepted) == (None, None)


def test_answers_of_one_request_are_alone() -> None:
    two_answers = replace(AFTER, finished=12)
    found = log_of((2.0, IDLE), (4.0, replace(IDLE, running=2)), (7.0, two_answers)).between(2, 7)

    assert found is not None
    assert found.alone is True


@pytest.mark.parametrize(
    ("begin", "during", "end", "alone"),
    [
        pytest.param(IDLE, AT_WORK, replace(AFTER, requests=12, finished=12), False, id="two came"),
        pytest.param(IDLE, replace(IDLE, running=2), AFTER, False, id="two at once"),
        pytest.param(AT_WORK, AT_WORK, replace(AFTER, running=1), False, id="one was and stays"),
        pytest.param(IDLE, AT_WORK, replace(AFTER, running=1), None, id="one came, or the next"),
        pytest.param(IDLE, AT_WORK, replace(AFTER, waiting=1), None, id="one waits"),
        pytest.param(IDLE, AT_WORK, replace(IDLE, running=0), None, id="broken off: none finished"),
        pytest.param(
            replace(IDLE, finished=None, requests=None), AT_WORK,
            replace(AFTER, finished=None, requests=None), None, id="an engine that does not count",
        ),
    ],
)  # fmt: skip
def test_not_known_to_be_alone(
    begin: Counters, during: Counters, end: Counters, alone: bool | None
) -> None:
    found = log_of((2.0, begin), (4.0, during), (7.0, end)).between(2.0, 7.0)

    assert found is not None
    assert found.alone is alone


@pytest.mark.parametrize(("asked_at_s", "span_s"), [(2.001, 4.999), (2.09, 4.91), (2.11, 6.0)])
def test_scrape_asked_just_after_the_request_is_its_begin(asked_at_s: float, span_s: float) -> None:
    found = log_of((1.0, IDLE), (asked_at_s, IDLE), (7.0, AFTER)).between(2.0, 7.0)

    assert found is not None
    assert found.span_s == pytest.approx(span_s)


def test_late_answer_is_no_begin() -> None:
    log = log_of((1.0, IDLE))
    log.note(Scrape(2.0, 5.0, replace(IDLE, prompt_tokens=1200)))  # holds the request's own prompt
    log.note(Scrape(7.0, 7.1, AFTER))

    found = log.between(2.0, 7.0, first_token_s=3.0)
    assert found is not None
    assert (found.prompt_tokens, found.span_s) == (200, 6.0)


def test_highest_readings_of_the_whole_span() -> None:
    scrapes = [
        Scrape(at_s, at_s, replace(IDLE, running=running, kv_used_ratio=used))
        for at_s, running, used in ((1.0, 0, None), (2.0, 3, 0.9), (3.0, 1, 0.2))
    ]

    found = activity(scrapes)
    assert found is not None
    assert (found.running_max, found.kv_used_max_ratio) == (3, 0.9)
