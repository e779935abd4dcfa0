"""What goes between the processes: all of an exchange that a case is made of, and no text."""

import pickle
import signal
import subprocess
import sys
from dataclasses import fields

import pytest

from slowtok.proxy.outputs.in_flight import running_entry
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt
from slowtok.proxy.workers.wire import (
    AT_BEGIN,
    AT_END,
    AT_SENDING,
    KEPT_APART,
    RemoteMeter,
    begun,
    packed_begin,
    packed_end,
    packed_sending,
    progress_of,
    update,
)

PATH = "/v1/chat/completions"
SECRET = b"the moon is made of"


def token(text: bytes) -> bytes:
    return b'data: {"model":"small","choices":[{"delta":{"content":"%s"}}]}\n\n' % text


END = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"timings":{"prompt_n":9,'
    b'"cache_n":1,"prompt_ms":5.0,"predicted_n":3,"predicted_ms":40.0}}\n\ndata: [DONE]\n\n'
)


def streaming() -> Exchange:
    """A stream with three tokens, one of which is not complete yet."""
    exchange = Exchange(
        request_id="a",
        method="POST",
        path=PATH,
        started_unix_s=1.7e9,
        accepted_at_s=10.0,
        api=find_api("POST", PATH),
        stream=True,
        model="small",
        engine_name="engine",
        status=200,
        sent_at_s=10.1,
        headers_at_s=10.2,
    )
    assert exchange.api is not None
    exchange.meter = Meter(exchange.api, "text/event-stream")
    for number in range(3):
        exchange.observe(token(SECRET), 10.3 + number / 10)
    exchange.observe(token(SECRET)[:-9], 10.6)
    return exchange


def finished() -> Exchange:
    exchange = streaming()
    exchange.observe(token(b"")[-9:] + END, 10.7)
    exchange.last_byte_at_s = exchange.delivered_at_s = 10.7
    exchange.loop_lag_s = 0.003
    exchange.end(None, 10.8)
    return exchange


def carried(packed: object) -> tuple[object, ...]:
    """What was packed, as it arrives in the other process."""
    found = pickle.loads(pickle.dumps(packed))
    assert isinstance(found, tuple)
    return found


def sent(exchange: Exchange) -> Exchange:
    """The exchange as it arrives in the other process."""
    copy = begun(carried(packed_begin(exchange)))
    update(copy, AT_SENDING, carried(packed_sending(exchange)))
    update(copy, AT_END, carried(packed_end(exchange)))
    return copy


def test_every_field_is_told_at_some_time_or_kept_apart() -> None:
    told = {*AT_BEGIN, *AT_SENDING, *AT_END}

    assert told.isdisjoint(KEPT_APART)
    assert told | {*KEPT_APART} == {f.name for f in fields(Exchange)}


def test_nothing_of_a_reply_goes_along() -> None:
    assert SECRET not in pickle.dumps(packed_end(streaming()))
    assert SECRET not in pickle.dumps(packed_end(finished()))


def test_a_case_is_made_of_the_same_times_and_counts() -> None:
    there = sent(finished())

    assert there.timeline() == finished().timeline()
    assert there.timeline().ended == "stop"
    assert there.timeline().loop_lag_s == 0.003
    assert there.api == finished().api


def test_a_copy_can_be_made_at_any_time() -> None:
    assert running_entry(sent(streaming()), 11.0) == running_entry(streaming(), 11.0)


def test_what_the_main_process_added_stays() -> None:
    copy = sent(streaming())
    copy.prompt = printed = fingerprint_prompt({"prompt": "a b c"})

    update(copy, AT_END, packed_end(finished()))

    assert copy.prompt is printed is not None
    same = [f.name for f in fields(Exchange) if f.name not in ("prompt", "meter")]
    assert [getattr(copy, n) for n in same] == [getattr(finished(), n) for n in same]


def test_meter_that_is_far_away_has_the_rate_that_it_was_told() -> None:
    exchange = streaming()
    assert exchange.api is not None
    exchange.meter = Meter(exchange.api, "text/event-stream")
    for tick in range(100):  # ten seconds at 10 tokens/s
        exchange.observe(token(SECRET), 10.5 + tick / 10)
    meter = RemoteMeter(exchange.api)

    meter.note(progress_of(exchange, 20.45))

    assert meter.token_events == exchange.meter.token_events
    assert meter.recent_tps(20.7) == exchange.meter.recent_tps(20.45) == pytest.approx(10.0)


def test_meter_that_is_far_away_claims_no_times_between_tokens() -> None:
    exchange = streaming()
    assert exchange.api is not None
    meter = RemoteMeter(exchange.api)
    meter.note(progress_of(exchange, 10.7))
    exchange.meter = meter
    exchange.end("proxy-stopped", 11.0)

    timeline = exchange.timeline()

    assert (timeline.first_token_at_s, timeline.last_token_at_s) == (10.3, 10.5)
    assert (timeline.ended, timeline.token_at_s, timeline.itl_p50_s) == ("proxy-stopped", (), None)
    assert timeline.tokens.completion is None


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize(("disposition", "ends"), [("SIG_DFL", True), ("SIG_IGN", False)])
def test_a_closed_terminal_ends_it_unless_nohup_started_it(disposition: str, ends: bool) -> None:
    code = f"""if True:
        import signal
        signal.signal(signal.SIGHUP, signal.{disposition})
        from slowtok.proxy.workers.wire import STOP_SIGNALS
        print(signal.SIGHUP in STOP_SIGNALS)
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == str(ends)
