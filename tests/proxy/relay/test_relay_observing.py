"""Whatever breaks in observing, the request goes through, and what broke is counted.

Not covered, because it does not hold: a detector or sink that never returns stops the event loop,
and with it every stream. They are bounded by what they are given; whatever waits (a disk, a
terminal) does so in a thread of its own, and that is tested here.
"""

import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.client import CHAT, Client
from fakes.proxy import SILENT, Served, serving
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, chunk, chunked_head, reply, until
from slowtok.detectors.causes.server import queued
from slowtok.proxy.app import Proxy
from slowtok.proxy.outputs.log import Log
from slowtok.proxy.runtime.background_writer import BackgroundWriter
from slowtok.proxy.sampling.supervisor import Sampler
from slowtok.proxy.stream.meter import Meter

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STREAM = chunked_head(SSE) + chunk(TEXT) + chunk(LAST) + LAST_CHUNK
WHOLE = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]}'


@pytest.fixture
async def proxy(engine: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """A proxy with a real sampler: that, too, is to break."""

    def use(proxy: Proxy) -> None:
        proxy.sampler = Sampler(command=SILENT)

    async with serving(tmp_path, engine.url, change=use) as served:
        yield served


def fail(*_args: Any, **_named: Any) -> Any:
    raise RuntimeError("broken on purpose")


async def both_pass(engine: Upstream, client: Client) -> None:
    """A stream and a whole reply come through unharmed, twice over."""
    for _ in range(2):
        engine.reply = STREAM
        await client.chat()
        assert (await client.reply())[1] == TEXT + LAST
        engine.reply = reply(WHOLE, JSON)
        await client.chat(stream=False)
        assert (await client.reply())[1] == WHOLE
        await client.ask("GET", "/x")
        assert (await client.reply())[1] == WHOLE


async def one_more_stream(engine: Upstream, client: Client) -> None:
    """A stream that no other request follows at once: there is time for its last sample."""
    engine.reply = STREAM
    await client.chat()
    assert (await client.reply())[1] == TEXT + LAST


async def failures(proxy: Served) -> dict[str, int]:
    counts: dict[str, int] = (await proxy.own("/slowtok/status"))["counts"]["failures"]
    return counts


async def test_meter_that_raises(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meter, "feed", fail)

    await both_pass(engine, client)

    await proxy.newest(6)
    assert [case.timeline.parse_errors for case in proxy.cases if case.timeline.model] == [1] * 4


async def test_meter_that_raises_at_the_end(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meter, "finish", fail)

    await both_pass(engine, client)


async def test_detector_that_raises(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "detect", fail)

    await both_pass(engine, client)

    await proxy.newest(6)
    records = await proxy.own("/slowtok/requests")
    diagnosed = [record for record in records if "verdict" in record]
    assert [record["failed"] for record in diagnosed] == [{"queued": "RuntimeError"}] * 4


@pytest.mark.parametrize(
    "place",
    [
        "slowtok.proxy.observe.observer.diagnose",
        "slowtok.proxy.observe.observer.Observer.diagnosis_headers",
        "slowtok.proxy.observe.observer.Observer.note_prompt",
        "slowtok.proxy.observe.case_builder.expectation",
        "slowtok.proxy.observe.case_builder.split",
        "slowtok.proxy.observe.observer.make_record",
        "slowtok.proxy.outputs.headers.diagnosis_headers",
        "slowtok.proxy.outputs.headers.server_timing",
        "slowtok.proxy.outputs.previous_verdicts.previous",
        "slowtok.proxy.observe.pending_prompts.fingerprint_prompt",
        "slowtok.proxy.observe.case_builder.count_neighbours",
        "slowtok.proxy.history.baselines.Baselines.find",
        "slowtok.proxy.history.baselines.Baselines.learn",
        "slowtok.proxy.observe.case_builder.facts_at",
        "slowtok.proxy.engines.registry.Engines.note_sent",
        "slowtok.proxy.engines.registry.Engines.note_arrived",
        "slowtok.proxy.engines.registry.Engines.wait_for_scrapes",
        "slowtok.proxy.engines.counters.activity.ActivityLog.between",
        "slowtok.proxy.observe.case_builder.gpus_used",
        "slowtok.proxy.sampling.supervisor.Sampler.set_active",
        "slowtok.proxy.sampling.supervisor.Sampler.wait_for_fresh_sample",
        "slowtok.proxy.sampling.supervisor.Sampler.host_window",
        "slowtok.proxy.sampling.supervisor.Sampler.gpu_window",
        "slowtok.proxy.sampling.supervisor.Sampler.device",
    ],
)
async def test_observing_that_raises(
    place: str, proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, fail)

    await both_pass(engine, client)
    await one_more_stream(engine, client)

    assert proxy.proxy.observer.in_flight == 0
    await until(proxy.proxy.observer.failures.total)
    monkeypatch.undo()
    assert sum((await failures(proxy)).values()) > 0


async def test_annotation_that_raises_leaves_the_stream_as_it_was(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.observe.observer.Observer.record_so_far", fail)
    engine.reply = STREAM

    await client.chat("slowtok-annotate: comment")

    assert (await client.reply())[1] == TEXT + LAST
    assert (await failures(proxy))["annotation"] == 1


async def test_clues_to_its_run_that_raise(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.relay.relay.clues_of", fail)

    await both_pass(engine, client)

    await proxy.newest(6)
    assert [case.timeline.parse_errors for case in proxy.cases if case.timeline.model] == [1] * 4


async def test_sink_that_raises(engine: Upstream, tmp_path: Path) -> None:
    lines: list[str] = []
    good = lambda case, diagnosis, record: lines.append(record["id"])  # noqa: E731
    async with serving(tmp_path, engine.url, sinks={"bad": fail, "good": good}) as proxy:
        await both_pass(engine, await proxy.connect())
        await proxy.newest(6)
        counted = await failures(proxy)

    assert counted == {"sink bad": 6}
    assert len(lines) == 6


@pytest.fixture
def stuck() -> Iterator[tuple[Log, threading.Event]]:
    """A log whose disk hangs, with one line on it already, until the event is set."""
    writing, answers = threading.Event(), threading.Event()

    def write(_line: str) -> None:
        writing.set()
        answers.wait(10)

    writer = BackgroundWriter(write, max_queued=2)
    writer.write("the line that hangs")
    assert writing.wait(10)
    yield Log(writer), answers
    answers.set()
    writer.close()


async def test_log_that_hangs_holds_up_nobody(
    stuck: tuple[Log, threading.Event], engine: Upstream, tmp_path: Path
) -> None:
    log, _ = stuck
    async with serving(tmp_path, engine.url, sinks={"log": log}) as proxy:
        await both_pass(engine, await proxy.connect())
        await proxy.newest(6)
        lost = (await proxy.own("/slowtok/status"))["counts"]["log_lines_lost"]

    assert lost == 4  # of six: two wait


@pytest.mark.parametrize(
    "command", [("false",), ("/does/not/exist",), ("sh", "-c", "yes garbage | head -1000")]
)
async def test_sampler_that_dies_or_babbles(
    command: tuple[str, ...], engine: Upstream, tmp_path: Path
) -> None:
    def use(proxy: Proxy) -> None:
        proxy.sampler = Sampler(command=command)

    async with serving(tmp_path, engine.url, change=use) as proxy:
        await both_pass(engine, await proxy.connect())
        assert (await proxy.newest(6))["event"] == "request"


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"[]", b'{"model":1,"stream":"x"}', b"\xff\x00"]
)
async def test_garbage_in_a_request_is_the_engines_to_judge(
    body: bytes, proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b'{"error":{}}', JSON, status="400 Bad Request")

    await client.ask("POST", CHAT, body=body)
    head, _ = await client.reply()

    assert head.status == 400
    assert await (await engine.next()).body() == body
    assert (await proxy.record(head.get("slowtok-id")))["status"] == 400


@pytest.mark.parametrize(
    "garbage",
    [b"", b"not json", b"[1]", b"null", b'{"choices":"x"}', b"\xff\xfe", b'{"timings":[]}'],
)
@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
async def test_garbage_in_a_whole_reply_passes(
    path: str, garbage: bytes, proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(garbage, JSON)

    await client.chat(target=path, stream=False)
    head, body = await client.reply()

    assert (head.status, body) == (200, garbage)
    assert (await proxy.record(head.get("slowtok-id")))["status"] == 200


@pytest.mark.parametrize("kind", ["vllm"])
@pytest.mark.parametrize(
    "garbage",
    [
        b"data: not json\n\n",
        b"data: [1]\n\n",
        b"\x00\xff" * 99,
        b'data: {"choices":7}\n\n',
        b"\r\n\r\n",
    ],
)
async def test_garbage_in_a_stream_passes(
    garbage: bytes, proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = chunked_head(SSE) + chunk(TEXT + garbage) + chunk(b"\n\n" + LAST) + LAST_CHUNK

    await client.chat()
    head, body = await client.reply()

    assert body == TEXT + garbage + b"\n\n" + LAST
    assert (await proxy.record(head.get("slowtok-id")))["status"] == 200


@pytest.mark.parametrize("kind", ["llama-server", "vllm"])
async def test_line_of_10_mb_passes(proxy: Served, engine: Upstream, client: Client) -> None:
    line = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"a" * (10 << 20))
    engine.reply = chunked_head(SSE) + chunk(TEXT) + chunk(line) + chunk(LAST) + LAST_CHUNK

    await client.chat()
    head, body = await client.reply()

    assert body == TEXT + line + LAST
    record = await proxy.record(head.get("slowtok-id"))
    assert (record["ended"], record.get("parse_errors", 0)) == ("stop", 0)


async def test_request_over_the_limit_passes_unread(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.relay, "_max_body_bytes", 1000)
    body = b'{"stream":true,"model":"small","prompt":"' + b"a" * 200_000 + b'"}'
    engine.reply = STREAM

    await client.ask("POST", CHAT, body=body)
    head, received = await client.reply()

    arrived = await engine.next()
    assert await arrived.body() == body
    assert arrived.head.get("content-length") == str(len(body))
    assert received == TEXT + LAST
    assert "model" not in await proxy.record(head.get("slowtok-id"))


async def test_request_that_there_is_no_room_for_passes_unread(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    proxy.proxy.relay.memory_budget.limit_bytes = 1_500_000
    told_apart = b" ".join(b"%d" % number for number in range(300_000))
    body = b'{"stream":true,"model":"small","prompt":"' + told_apart + b'"}'
    engine.reply = STREAM

    await client.ask("POST", CHAT, body=body)
    head, received = await client.reply()

    assert await (await engine.next()).body() == body
    assert received == TEXT + LAST
    assert "model" not in await proxy.record(head.get("slowtok-id"))
    assert proxy.proxy.relay.memory_budget.now_bytes == 0


async def test_whole_reply_over_the_limit_passes_without_a_verdict(
    proxy: Served, engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy.proxy.relay, "_max_reply_bytes", 1000)
    engine.reply = reply(b"[" + b"1" * 300_000 + b"]", JSON)

    await client.chat(stream=False)
    head, body = await client.reply()

    assert body == b"[" + b"1" * 300_000 + b"]"
    assert head.get("content-length") == "300002"
    assert head.get("slowtok-verdict") is None
    assert (await proxy.record(head.get("slowtok-id")))["status"] == 200


async def test_limits_are_generous(proxy: Served) -> None:
    assert proxy.proxy.settings.max_body_bytes == 64 << 20
    assert proxy.proxy.settings.max_reply_bytes == 32 << 20


async def test_encoded_stream_is_recorded_without_counts(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    packed = gzip.compress(TEXT + LAST)
    engine.reply = chunked_head(SSE, "Content-Encoding: gzip") + chunk(packed) + LAST_CHUNK

    await client.chat()
    head, body = await client.reply()

    assert body == packed
    record = await proxy.record(head.get("slowtok-id"))
    assert record["status"] == 200
    assert "completion" not in record.get("tokens", {})


async def test_no_prompt_and_no_answer_in_the_record(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = chunked_head(SSE) + chunk(TEXT.replace(b'"a"', b'"ANSWER"')) + LAST_CHUNK

    await client.chat("Authorization: Bearer KEY", messages=[{"role": "user", "content": "PROMPT"}])
    head, _ = await client.reply()

    record = json.dumps(await proxy.record(head.get("slowtok-id")))
    assert not any(secret in record for secret in ("ANSWER", "KEY", "PROMPT"))
