"""What runs now, told from the arrivals so far. Time is data."""

from typing import Any

import pytest

from slowtok.detectors.case.machine import HostSample
from slowtok.proxy.outputs.in_flight import running, running_entry, stage
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.web.status import host_now

CHAT = find_api("POST", "/v1/chat/completions")
assert CHAT is not None
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'


def exchange(**more: Any) -> Exchange:
    known: dict[str, Any] = {"model": "m", "engine_name": "main", "stream": True, "sent_at_s": 10.5}
    return Exchange(
        request_id="1", method="POST", path="/v1/chat/completions", started_unix_s=0.0,
        accepted_at_s=10.0, api=CHAT, **(known | more),
    )  # fmt: skip


def streaming(*arrivals_s: float, each: bytes = TOKEN) -> Exchange:
    assert CHAT is not None
    found = exchange(meter=Meter(CHAT, "text/event-stream"))
    found.observe(ROLE, 10.6)
    for at_s in arrivals_s:
        found.observe(each, at_s)
    return found


@pytest.mark.parametrize(
    ("one", "phase"),
    [
        (exchange(sent_at_s=None), "receiving"),
        (exchange(), "waiting"),
        (streaming(), "waiting"),  # a role is no token
        (streaming(11.0), "decode"),
        (exchange(stream=False), "whole"),
        (exchange(last_byte_at_s=12.0), "delivery"),
    ],
)
def test_phases(one: Exchange, phase: str) -> None:
    assert stage(one) == phase


def test_before_the_first_token_there_is_no_rate() -> None:
    assert running_entry(streaming(), 12.0) == {
        "id": "1", "model": "m", "engine": "main", "path": "/v1/chat/completions",
        "stream": True, "phase": "waiting", "since_s": 2.0, "sent_s": 1.5,
    }  # fmt: skip


def test_a_steady_stream() -> None:
    found = running_entry(streaming(*(11 + n / 10 for n in range(41))), 15.0)

    assert (found["tokens"], found["ttft_s"], found["silent_s"]) == (41, 1.0, 0.0)
    assert found["decode_tps"] == pytest.approx(10)
    assert found["recent_tps"] == pytest.approx(10)


def test_what_is_left_is_told_where_the_client_set_a_limit() -> None:
    stream = streaming(*(11 + n / 10 for n in range(41)))
    assert "remaining_tokens" not in running_entry(stream, 15.0)

    stream.max_tokens = 100
    assert running_entry(stream, 15.0)["remaining_tokens"] == 59
    stream.max_tokens = 40  # the engine goes on: it takes no notice of this limit
    assert "remaining_tokens" not in running_entry(stream, 15.0)


def test_a_stream_that_stopped_is_not_merely_slow() -> None:
    found = running_entry(streaming(*(11 + n / 10 for n in range(41))), 35.0)

    assert (found["silent_s"], found["recent_tps"]) == (20.0, 0.0)
    assert found["decode_tps"] == pytest.approx(10)


def test_a_stream_that_slows_down_shows_in_the_recent_rate() -> None:
    found = running_entry(streaming(*(11 + n / 10 for n in range(40)), 16, 17, 18, 19), 19.0)

    assert found["recent_tps"] == pytest.approx(1, abs=0.1)
    assert found["decode_tps"] > 5


def test_several_events_in_one_read_are_counted_each() -> None:
    found = running_entry(streaming(11.0, 12.0, 13.0, each=TOKEN * 4), 13.0)

    assert found["tokens"] == 12
    assert found["recent_tps"] == pytest.approx(4)


def test_a_long_stream_whose_arrivals_were_thinned() -> None:
    found = running_entry(streaming(*(11 + n / 1000 for n in range(40_000))), 51.0)

    assert found["tokens"] == 40_000
    assert found["recent_tps"] == pytest.approx(1000, rel=0.01)


def test_only_generations_run() -> None:
    other = exchange()
    other.api = None

    assert [entry["phase"] for entry in running([other, exchange()], 11.0)] == ["waiting"]


def test_the_newest_reading_of_the_host_that_is_known() -> None:
    old = HostSample(at_s=1.0, span_s=0.1, cpu_cores=2, cpu_busy_cores=1.0, cpu_mhz=3000.0)
    new = HostSample(at_s=2.0, span_s=0.1, cpu_cores=2, cpu_busy_cores=0.0)

    assert host_now([old, new]) == {"cpu_cores": 2, "cpu_busy_cores": 0.0, "cpu_mhz": 3000.0}
    assert host_now([]) == {}
