"""The diagnosis in response headers: whole replies carry their own, streams the one before."""

import json
from typing import Any

import pytest

from fakes import recordings
from fakes.client import CHAT, Client
from fakes.proxy import Served
from fakes.rfc9651 import read_item, read_list
from fakes.upstream import Upstream
from fakes.wire import JSON, LAST_CHUNK, SSE, Head, chunk, chunked_head, reply
from slowtok.detectors.case.case import Case
from slowtok.detectors.case.finding import Diagnosis, Finding
from slowtok.proxy.observe.observer import LAST_SAMPLE_S

TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
STREAM = chunked_head(SSE) + chunk(TEXT) + LAST_CHUNK
NASTY = 'Say "no" \\ to\r\nslowtok-forged: 1 \u2013 caf\u00e9 ' + "long " * 100


def answer(prefill_ms: float = 0.25, decode_ms: float = 0.5) -> bytes:
    """A recorded answer of llama-server, made as fast as the fake that sends it."""
    said = json.loads(recordings.unframe(recordings.load("llama-server-2026.10.chat")).body)
    said["timings"] |= {"prompt_ms": prefill_ms, "predicted_ms": decode_ms}
    return reply(json.dumps(said).encode(), JSON)


def slow(_case: Case, **_named: Any) -> Diagnosis:
    finding = Finding(
        phase="decode", confidence=0.934, lost_s=84.2101, summary=NASTY, remedy=NASTY, evidence=()
    )
    also = Finding(phase="decode", confidence=1.0, lost_s=1.0, summary="", remedy="", evidence=())
    return Diagnosis(
        verdict="slow", phase="decode", findings={"model-too-big": finding, "queued": also}
    )


def diagnosis_fields(head: Head) -> set[str]:
    return {n for n, _ in head.fields if n.startswith("slowtok-")} - {"slowtok-id"}


async def test_whole_reply_carries_its_own_diagnosis(engine: Upstream, client: Client) -> None:
    engine.reply = answer()

    await client.chat(stream=False)
    head, _ = await client.reply()

    assert read_item(head.get("slowtok-verdict") or "") == ("unknown", {})  # too short to judge
    timing = dict(read_list(head.get("server-timing") or ""))
    assert set(timing) == {"queue", "prefill", "decode", "proxy"}
    assert timing["prefill"] == {"dur": "0.25"}
    assert timing["decode"] == {"dur": "0.5"}
    assert float(timing["proxy"]["dur"]) > 0
    tokens, about = read_item(head.get("slowtok-prefill") or "")
    assert (tokens, about["cached"]) == ("34", "33")
    tokens, about = read_item(head.get("slowtok-decode") or "")
    assert (tokens, about) == ("16", {"ms": "0.5", "rate": "30000.0"})
    assert head.get("slowtok-cause") is None
    assert head.get("slowtok-hint") is None


async def test_slow_reply_names_cause_and_remedy(
    engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.observe.observer.diagnose", slow)
    engine.reply = answer()

    await client.chat(stream=False)
    head, _ = await client.reply()

    assert read_item(head.get("slowtok-verdict") or "") == ("slow", {"phase": "decode"})
    assert read_list(head.get("slowtok-cause") or "") == [
        ("model-too-big", {"confidence": "0.93", "lost-ms": "84210"}),
        ("queued", {"confidence": "1.0", "lost-ms": "1000"}),
    ]
    hint, _ = read_item(head.get("slowtok-hint") or "")
    assert hint.startswith(r'"Say \"no\" \\ to')
    assert len(hint) < 300
    assert head.get("slowtok-forged") is None


async def test_every_field_is_a_structured_one(
    engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slowtok.proxy.observe.observer.diagnose", slow)
    engine.reply = answer()
    for stream in (False, False, True):
        await client.chat(stream=stream)
        head, _ = await client.reply()
        ours = [n for n, _ in head.fields if n.startswith("slowtok-") and n != "slowtok-id"]
        assert len(ours) == len(set(ours)) >= 5
        for name in (*ours, "server-timing"):
            assert read_list(head.get(name) or "")


async def test_stream_says_what_is_known_at_its_head(engine: Upstream, client: Client) -> None:
    engine.reply = STREAM

    await client.chat()
    head, _ = await client.reply()

    ((name, about),) = read_list(head.get("server-timing") or "")
    assert (name, set(about)) == ("proxy", {"dur"})
    assert diagnosis_fields(head) == set()  # nothing came before it


async def test_stream_carries_the_verdict_before_it(
    engine: Upstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.reply = STREAM
    await client.chat()
    first, _ = await client.reply()
    monkeypatch.setattr("slowtok.proxy.observe.observer.diagnose", slow)
    await client.chat()
    second, _ = await client.reply()
    await client.chat()
    third, _ = await client.reply()
    await client.chat(model="another")
    other, _ = await client.reply()

    assert (
        read_item(second.get("slowtok-previous") or "")[1]["id"] == f'"{first.get("slowtok-id")}"'
    )
    assert read_item(third.get("slowtok-previous") or "") == (
        "slow",
        {"id": f'"{second.get("slowtok-id")}"', "cause": '"model-too-big"'},
    )
    assert other.get("slowtok-previous") is None


async def test_record_of_a_stream_is_there_when_asked_for(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = STREAM
    await client.chat()
    head, _ = await client.reply()

    record = await proxy.record(head.get("slowtok-id"))  # the API waits for at most half a second

    assert record["id"] == head.get("slowtok-id")
    assert (record["path"], record["stream"], record["status"]) == (CHAT, True, 200)
    assert (record["ended"], record["upstream"]["kind"]) == ("stop", "llama-server")


async def test_what_is_no_generation_has_no_diagnosis(
    proxy: Served, engine: Upstream, client: Client
) -> None:
    engine.reply = reply(b"{}", JSON)

    await client.ask("GET", "/v1/models")
    head, _ = await client.reply()

    assert diagnosis_fields(head) == set()
    assert head.get("server-timing") is None
    assert "verdict" not in await proxy.record(head.get("slowtok-id"))


async def test_engines_own_server_timing_is_kept(engine: Upstream, client: Client) -> None:
    engine.reply = reply(b"{}", JSON, "Server-Timing: db;dur=1.5")

    await client.ask("GET", "/x")
    passed, _ = await client.reply()
    await client.chat(stream=False)
    judged, _ = await client.reply()

    assert passed.every("server-timing") == ["db;dur=1.5"]
    assert "db;dur=1.5" in judged.every("server-timing")


async def test_record_is_due_soon() -> None:
    assert LAST_SAMPLE_S < 0.25
