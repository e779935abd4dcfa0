"""What the observing process makes of a worker's words, however many of them come at once."""

import asyncio
import time
from typing import Any

import pytest

from fakes.proxy import Served
from slowtok.detectors.case.case import Baseline, Envelope, Range
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.meter import Meter
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt
from slowtok.proxy.workers.session import WorkerSession
from slowtok.proxy.workers.wire import packed_begin, packed_end, packed_sending

PATH = "/v1/chat/completions"
TOKEN = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


def begun(proxy: Served, *, stream: bool, request_id: str = "a") -> Exchange:
    now_s = time.monotonic()
    return Exchange(
        request_id=request_id,
        method="POST",
        path=PATH,
        started_unix_s=1.7e9,
        accepted_at_s=now_s,
        api=find_api("POST", PATH),
        stream=stream,
        model="small",
        engine_name=proxy.proxy.engines.all[0].name,
        sent_at_s=now_s,
    )


def ended(exchange: Exchange) -> tuple[Any, ...]:
    """What is told of an exchange at its end, where nothing was told of its sending."""
    return exchange.request_id, packed_sending(exchange), packed_end(exchange)


def session_of(proxy: Served) -> tuple[WorkerSession, dict[str, Any]]:
    session = WorkerSession(proxy.proxy.observer, proxy.proxy.engines, lambda event, **facts: None)
    return session, dict(session.handlers())


async def test_note_is_taken_in_the_order_in_which_it_was_told(proxy: Served) -> None:
    _, tell = session_of(proxy)
    exchange = begun(proxy, stream=True)
    tell["begin"](packed_begin(exchange))

    tell["sent_stream"](exchange.request_id, packed_sending(exchange))
    tell["arrived"]("a", exchange.accepted_at_s)
    (copy,) = proxy.proxy.observer._live.values()
    assert copy.last_byte_at_s == exchange.accepted_at_s
    tell["end"](*ended(exchange))

    assert (await proxy.record("a"))["id"] == "a"
    assert proxy.proxy.observer.failures == {}


async def test_diagnosis_that_nobody_waits_for_any_more_is_not_kept(proxy: Served) -> None:
    _, tell = session_of(proxy)
    exchange = begun(proxy, stream=False)
    tell["begin"](packed_begin(exchange))

    asked = tell["diagnose"](*ended(exchange))
    tell["end"](*ended(exchange))

    assert (await asked)[0] == {}
    assert (await proxy.record("a"))["id"] == "a"
    assert proxy.proxy.observer._concluded == {}
    assert proxy.proxy.observer.diagnosed == 1


async def test_fingerprint_that_comes_at_once_is_compared_with_streams_that_just_ended(
    proxy: Served,
) -> None:
    session, tell = session_of(proxy)
    printed = fingerprint_prompt({"messages": [{"role": "user", "content": "x" * 640}]})
    for request_id in ("a", "b"):
        before = begun(proxy, stream=True, request_id=request_id)
        tell["begin"](packed_begin(before))
        tell["fingerprinted"](request_id, printed)
        before.meter = Meter(before.api, "text/event-stream") if before.api else None
        before.observe(TOKEN, before.accepted_at_s)
        tell["end"](*ended(before))
    exchange = begun(proxy, stream=False, request_id="c")
    tell["begin"](packed_begin(exchange))
    tell["sent"](exchange.request_id, packed_sending(exchange))
    tell["fingerprinted"]("c", printed)

    found = session._copies["c"].prefix
    assert found is not None
    assert found.common_prefix_chars == 640
    tell["end"](*ended(exchange))


async def test_end_of_a_whole_reply_tells_that_it_has_arrived(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tell = session_of(proxy)
    arrived: list[str] = []
    monkeypatch.setattr(proxy.proxy.observer, "arrived", lambda e: arrived.append(e.request_id))
    exchange = begun(proxy, stream=False)
    tell["begin"](packed_begin(exchange))
    exchange.last_byte_at_s = exchange.accepted_at_s
    asked = tell["diagnose"](*ended(exchange))
    assert arrived == ["a"]
    tell["end"](*ended(exchange))

    await asked
    assert arrived == ["a"]


async def test_request_that_was_refused_tells_what_its_client_said_of_it(proxy: Served) -> None:
    _, tell = session_of(proxy)
    exchange = begun(proxy, stream=False)
    exchange.sent_at_s = None
    exchange.status, exchange.ended = 413, "too-large"
    tell["begin"](packed_begin(exchange))
    tell["end"](*ended(exchange))

    record = await proxy.record("a")
    assert (record["model"], record["status"]) == ("small", 413)


async def test_setups_are_told_once_each_time_that_they_change(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, tell = session_of(proxy)
    assert session.changed_setups() == {}
    exchange = begun(proxy, stream=False)
    tell["begin"](packed_begin(exchange))
    tell["end"](*ended(exchange))
    await proxy.record("a")
    proxy.proxy.observer.publish_all()

    (key,) = session.changed_setups()
    assert key[:2] == (exchange.engine_name, "small")
    assert session.changed_setups() == {}


async def test_setups_of_an_engine_that_is_another_one_are_dropped(proxy: Served) -> None:
    session, tell = session_of(proxy)
    session.changed_setups()
    exchange = begun(proxy, stream=False)
    tell["begin"](packed_begin(exchange))
    tell["end"](*ended(exchange))
    await proxy.record("a")
    proxy.proxy.observer.publish_all()
    (key,) = session.changed_setups()

    engine = proxy.proxy.engines.all[0]
    assert engine.found_at_s is not None
    engine.found_at_s += 1.0
    assert session.changed_setups() == {key: None}


async def test_record_is_judged_against_what_the_header_was_judged_against(proxy: Served) -> None:
    _, tell = session_of(proxy)
    exchange = begun(proxy, stream=False)
    band = Envelope(decode=Range(low=12.0, high=34.0), basis="test")
    exchange.judged_against = band, Baseline(count=3, decode_tps=20.0, decode_p10_tps=18.0)
    tell["begin"](packed_begin(exchange))
    tell["end"](*ended(exchange))

    record = await proxy.record("a")
    expected = record["expected"]
    assert (expected["decode_low_tps"], expected["decode_high_tps"]) == (12.0, 34.0)


async def test_worker_that_lost_an_engine_is_told_of_it_again(proxy: Served) -> None:
    session, tell = session_of(proxy)
    known = session.changes()
    assert known is not None
    assert known.only is not None
    assert session.changes() is None

    tell["lose"](known.only.name)
    await proxy.proxy.engines.choose(None)  # it is back before the worker was told
    await asyncio.sleep(0)

    assert session.changes() == known
