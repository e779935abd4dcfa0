"""What is noted of a request while it passes, without a connection."""

from typing import Any

import pytest

from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
ERROR = b'data: {"error":{"message":"broken"}}\n\n'


def exchange(**known: Any) -> Exchange:
    api = find_api("POST", "/v1/chat/completions")
    assert api is not None
    base = {"request_id": "id", "method": "POST", "path": "/v1/chat/completions", "api": api}
    times = {"started_unix_s": 1e9, "accepted_at_s": 10.0, "sent_at_s": 10.0, "headers_at_s": 10.1}
    meter = Meter(api, "text/event-stream")
    return Exchange(**{**base, **times, "meter": meter, "stream": True, "status": 200, **known})


@pytest.mark.parametrize(
    ("chunks", "ended"),
    [
        ((TEXT, STOP), "stop"),
        ((TEXT,), "upstream-error"),  # a stream without a finish reason was cut
        ((TEXT, ERROR), "upstream-error"),
        ((), "upstream-error"),
    ],
)
def test_end_of_a_stream_is_what_its_engine_said(chunks: tuple[bytes, ...], ended: str) -> None:
    noted = exchange()
    for chunk in chunks:
        noted.observe(chunk, 11.0)
    noted.end(None, 12.0)

    assert noted.timeline().ended == ended


@pytest.mark.parametrize("ended", ["client-gone", "upstream-error", "upstream-refused", "timeout"])
def test_cut_short_wins_over_what_the_engine_had_said(ended: str) -> None:
    noted = exchange()
    noted.observe(TEXT + STOP, 11.0)
    noted.end(ended, 12.0)

    assert noted.timeline().ended == ended


def test_first_word_on_the_end_stands() -> None:
    noted = exchange()
    noted.end("upstream-error", 12.0)
    noted.end("client-gone", 13.0)

    assert (noted.timeline().ended, noted.ended_at_s) == ("upstream-error", 12.0)


def test_error_status_is_an_end_of_its_own() -> None:
    noted = exchange(status=400, stream=False, meter=Meter(exchange().api, "application/json"))  # type: ignore[arg-type]
    noted.observe(b'{"error":{"message":"too long"}}', 11.0)
    noted.end(None, 11.0)

    assert noted.timeline().ended == "http-error"


def test_tokens_and_times_come_from_the_meter() -> None:
    noted = exchange()
    for at_s in (11.0, 11.5, 12.5):
        noted.observe(TEXT, at_s)
    noted.observe(STOP, 12.6)
    noted.last_byte_at_s = 12.6
    noted.end(None, 12.7)

    timeline = noted.timeline()
    assert (timeline.first_token_at_s, timeline.last_token_at_s) == (11.0, 12.5)
    assert timeline.token_at_s == (11.0, 11.5, 12.5)
    assert (timeline.itl_p50_s, timeline.itl_p99_s) == (1.0, 1.0)
    assert timeline.parse_errors == 0


def test_whole_reply_has_no_token_times() -> None:
    noted = exchange(stream=False)
    noted.observe(TEXT + STOP, 11.0)
    noted.end(None, 11.0)

    timeline = noted.timeline()
    assert (timeline.first_token_at_s, timeline.token_at_s) == (None, ())


def test_meter_that_raises_is_put_aside_and_counted() -> None:
    class Broken(Meter):
        def feed(self, chunk: bytes, at_s: float) -> None:
            raise RuntimeError

    api = exchange().api
    assert api is not None
    noted = exchange(meter=Broken(api, "text/event-stream"))
    noted.observe(TEXT, 11.0)
    noted.observe(TEXT, 12.0)
    noted.end(None, 13.0)

    timeline = noted.timeline()
    assert noted.meter is None
    assert (timeline.parse_errors, timeline.ended) == (1, "unknown")
