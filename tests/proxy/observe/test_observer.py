"""Beside the relay: records and headers come, and whatever breaks costs a request nothing."""

import asyncio
import gc
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
import pytest

from fakes.client import Client
from fakes.proxy import Served, serving
from fakes.upstream import Upstream
from fakes.wire import JSON, reply, until
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis
from slowtok.detectors.diagnosis.diagnose import diagnose
from slowtok.proxy.engines.engine import Engine
from slowtok.proxy.observe import observer, pending_prompts
from slowtok.proxy.outputs.sink import Sink
from slowtok.proxy.relay.exchange import Exchange
from slowtok.proxy.stream.apis import find_api
from slowtok.proxy.stream.prompt_fingerprint import fingerprint_prompt

WHOLE = orjson.dumps(
    {
        "model": "small",
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        "timings": {"prompt_n": 9, "prompt_ms": 1.0, "predicted_n": 2, "predicted_ms": 1.0},
    }
)
STREAM = (
    b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)
EVENTS = reply(STREAM, "Content-Type: text/event-stream")


def raising(*_: object, **__: object) -> Any:
    raise RuntimeError("broken")


async def ask(client: Client, engine: Upstream, **said: Any) -> tuple[str, bytes]:
    engine.reply = EVENTS if said.get("stream", True) else reply(WHOLE, JSON)
    await client.chat(**said)
    head, body = await client.reply()
    assert head.status == 200
    return head.get("slowtok-id") or "", body


async def failures(proxy: Served) -> dict[str, int]:
    counted: dict[str, int] = (await proxy.own("/slowtok/status"))["counts"]["failures"]
    return counted


async def test_record_is_there_when_it_is_asked_for(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    for stream in (True, False):
        request_id, _ = await ask(client, engine, stream=stream)
        record = await proxy.record(request_id)

        assert record["id"] == request_id
        assert (record["stream"], record["ended"]) == (stream, "stop")
        assert record["upstream"]["kind"] == "llama-server"
        assert record["verdict"] == "unknown"


async def test_whole_reply_carries_its_own_diagnosis(engine: Upstream, client: Client) -> None:
    engine.reply = reply(WHOLE, JSON)
    await client.chat(stream=False)
    head, body = await client.reply()

    assert body == WHOLE
    assert head.get("slowtok-verdict") == "unknown"
    assert head.get("slowtok-decode") == "2;ms=1.0;rate=1000.0"
    assert "prefill;dur=" in (head.get("server-timing") or "")


async def test_stream_carries_the_last_verdict_on_its_model(
    engine: Upstream, client: Client
) -> None:
    first, _ = await ask(client, engine)
    engine.reply = EVENTS
    await client.chat()
    head, _ = await client.reply()
    await client.chat(model="another")
    other, _ = await client.reply()

    assert head.get("slowtok-previous") == f'unknown;id="{first}"'
    assert other.get("slowtok-previous") is None


async def test_last_verdict_without_a_model_in_the_request(
    engine: Upstream, client: Client
) -> None:
    first, _ = await ask(client, engine, stream=False, model=None)
    engine.reply = EVENTS
    await client.chat(model=None)
    head, _ = await client.reply()

    assert head.get("slowtok-previous") == f'unknown;id="{first}"'


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        "observer.diagnose",
        "case_builder.expectation",
        "case_builder.split",
        "case_builder.count_neighbours",
        "observer.make_record",
    ],
)
async def test_diagnosis_that_breaks_costs_only_the_record(
    broken: str,
    stream: bool,
    engine: Upstream,
    proxy: Served,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"slowtok.proxy.observe.{broken}", raising)
    _, body = await ask(client, engine, stream=stream)

    assert body == (STREAM if stream else WHOLE)
    await until(lambda: proxy.proxy.observer.failures["diagnosis"] >= 1)


async def test_request_whose_record_broke_is_not_waited_for(
    engine: Upstream, proxy: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "make_record", raising)
    request_id, _ = await ask(client, engine, stream=False)
    asking = await proxy.connect()
    await asking.ask("GET", f"/slowtok/requests/{request_id}")
    head, _ = await asking.reply()

    assert head.status == 404


async def test_memory_that_breaks_costs_only_itself(
    engine: Upstream, proxy: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.baselines, "learn", raising)
    request_id, body = await ask(client, engine, stream=False)

    assert body == WHOLE
    assert (await proxy.record(request_id))["id"] == request_id
    assert await failures(proxy) == {"memory": 1}


async def test_sampling_that_breaks_costs_only_its_samples(
    engine: Upstream, proxy: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.sampler, "wait_for_fresh_sample", raising)
    request_id, _ = await ask(client, engine)

    assert (await proxy.record(request_id))["id"] == request_id
    assert await failures(proxy) == {"sampling": 1}


async def test_prompt_that_breaks_costs_only_its_print(
    engine: Upstream, proxy: Served, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_prompts, "fingerprint_prompt", raising)
    await client.chat()
    arrived = await engine.next()
    await arrived.answer(EVENTS)
    head, _ = await client.reply()

    assert (await proxy.record(head.get("slowtok-id")))["ended"] == "stop"
    assert await failures(proxy) == {"prompt fingerprint": 1}


async def test_sink_that_fails_is_counted_and_the_others_get_theirs(
    engine: Upstream, tmp_path: Path
) -> None:
    taken: list[str] = []

    def take(case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        assert diagnosis is not None
        assert case.timeline.request_id == record["id"]
        taken.append(record["id"])

    sinks: dict[str, Sink] = {"broken": raising, "whole": take}
    async with serving(tmp_path, engine.url, sinks=sinks) as proxy:
        client = await proxy.connect()
        request_id, _ = await ask(client, engine)
        await proxy.record(request_id)

        assert taken == [request_id]
        assert await failures(proxy) == {"sink broken": 1}


async def test_disabled_cause_is_not_looked_at(
    engine: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[set[str]] = []

    def noting(case: Case, *, disabled: Collection[str]) -> Diagnosis:
        looked_at.append(set(disabled))
        return diagnose(case, disabled=disabled)

    monkeypatch.setattr(observer, "diagnose", noting)
    async with serving(tmp_path, engine.url, disable=["queued"]) as proxy:
        request_id, _ = await ask(await proxy.connect(), engine)
        record = await proxy.record(request_id)

        assert {"queued"} in looked_at
        assert record["verdict"] == "unknown"
        assert record["cleared"] == []  # nothing could be judged


async def test_stop_concludes_what_still_waits_for_samples(
    engine: Upstream, tmp_path: Path
) -> None:
    concluded: list[str] = []

    def take(case: Case, diagnosis: Diagnosis | None, record: dict[str, Any]) -> None:
        assert case.timeline.ended == "stop"
        assert diagnosis is not None
        concluded.append(record["id"])

    async with serving(tmp_path, engine.url, sinks={"take": take}) as proxy:
        request_id, _ = await ask(await proxy.connect(), engine)

    assert concluded == [request_id]


async def test_request_that_merely_passes_has_a_record_without_a_verdict(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    engine.reply = reply(b"ok")
    await client.ask("GET", "/v1/x?key=secret")
    head, _ = await client.reply()
    record = await proxy.record(head.get("slowtok-id"))

    assert record["path"] == "/v1/x"
    assert "verdict" not in record


async def test_path_that_is_no_text_does_not_poison_the_list(
    engine: Upstream, proxy: Served, client: Client
) -> None:
    engine.reply = reply(b"ok")
    await client.ask("GET", "/%ED%A0%80%FF")
    head, _ = await client.reply()

    assert head.status == 200
    assert len(await proxy.own("/slowtok/requests")) == 1


def generation(request_id: str, *, stream: bool) -> Exchange:
    return Exchange(
        request_id=request_id,
        method="POST",
        path="/v1/chat/completions",
        started_unix_s=time.time(),
        accepted_at_s=time.monotonic(),
        api=find_api("POST", "/v1/chat/completions"),
        stream=stream,
    )


async def test_reply_that_nobody_waits_for_any_more_is_diagnosed_once(proxy: Served) -> None:
    watching = proxy.proxy.observer
    mine, another = generation("one", stream=False), generation("two", stream=False)
    watching.begin(mine)
    watching.begin(another)
    waiting = asyncio.create_task(watching.diagnosis_headers(mine))
    watching.end(mine)

    assert await waiting == {}
    assert (await proxy.record("one"))["id"] == "one"
    assert watching.diagnosed == 1
    assert not watching._concluded
    watching.end(another)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_has_ended_is_concluded_before_the_next_prompt_is_compared(
    proxy: Served, stream: bool
) -> None:
    watching = proxy.proxy.observer
    before, mine = generation("before", stream=stream), generation("mine", stream=stream)
    fingerprint = fingerprint_prompt({"messages": [{"role": "user", "content": "hi"}]})
    assert fingerprint is not None
    watching.begin(before)
    watching.end(before)
    watching.begin(mine)
    watching.note_fingerprint(mine, fingerprint)

    assert await proxy.proxy.records.get("before", timeout_s=0.0) is not None
    watching.end(mine)


async def test_a_prompt_that_is_read_after_its_reply_is_let_go(proxy: Served) -> None:
    watching = proxy.proxy.observer
    mine = generation("mine", stream=True)
    fingerprint = fingerprint_prompt({"messages": [{"role": "user", "content": "hi"}]})
    assert fingerprint is not None
    watching.begin(mine)
    watching.end(mine)
    watching.note_fingerprint(mine, fingerprint)

    assert mine.prompt is None
    assert set(watching._awaiting_sample) == {"mine"}  # it still waits for its last sample


async def test_a_stream_that_is_settled_at_once_is_settled_once(proxy: Served) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    watching = proxy.proxy.observer
    exchange = generation("one", stream=True)
    watching.begin(exchange)
    watching.end(exchange)
    watching.conclude_all()
    await asyncio.sleep(0)
    gc.collect()

    assert (await proxy.record("one"))["id"] == "one"
    assert complaints == []


async def test_many_at_once_are_not_sampled_each_by_itself(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching, edges = proxy.proxy.observer, []
    monkeypatch.setattr(proxy.proxy.sampler, "set_active", lambda _, edge=True: edges.append(edge))
    crowd = [generation(str(number), stream=True) for number in range(observer.CROWD + 2)]
    for exchange in crowd:
        watching.begin(exchange)

    assert edges == [True] * (observer.CROWD - 1) + [False] * 3
    for exchange in crowd:
        watching.end(exchange)


async def test_counters_that_cannot_be_read_are_told(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "scrape_failures", 2)

    assert await failures(proxy) == {"scraping": 2}
