"""`slowtok serve` with an OpenTelemetry receiver: a real process, a real OTLP request."""

import asyncio
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra [otel] is not here")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otel] is not here")

from fakes.commands import served
from fakes.otlp import attributes, http_receiver
from fakes.upstream import listening
from fakes.wire import JSON, reply

CHAT = b'{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = {"model": "small", "messages": []}


async def ask(address: str, traceparent: str | None = None) -> httpx.Response:
    headers = {"traceparent": traceparent} if traceparent else {}
    async with httpx.AsyncClient(trust_env=False) as client:
        url = f"http://{address}/v1/chat/completions"
        return await client.post(url, json=BODY, headers=headers)


async def test_a_request_becomes_a_trace(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        env = {"SLOWTOK_OTLP_ENDPOINT": receiver.url}
        async with (
            listening("llama-server") as engine,
            served(tmp_path, "--upstream", engine.url, env=env) as running,
        ):
            engine.reply = reply(CHAT, JSON)
            address = await running.address()
            joined = await ask(address, CALLER)
            own = await ask(address)
            seen = [(await engine.next()).head.get("traceparent") for _ in range(2)]
            assert await running.end() == 0
        spans = await asyncio.to_thread(receiver.spans)

    roots = {attributes(s.attributes).get("slowtok.request.id"): s for s in spans}
    first, second = roots[joined.headers["slowtok-id"]], roots[own.headers["slowtok-id"]]
    assert seen[0] == CALLER
    assert first.parent_span_id.hex() == CALLER[36:52]
    assert seen[1] is not None
    assert seen[1].endswith("-01")  # an engine that records traces, too, joins this one
    assert (second.trace_id.hex(), second.span_id.hex()) == (seen[1][3:35], seen[1][36:52])


async def test_receiver_that_is_gone_holds_up_neither_requests_nor_the_end(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        url = receiver.url  # nobody listens there any more
    async with (
        listening("llama-server") as engine,
        served(tmp_path, "--upstream", engine.url, env={"SLOWTOK_OTLP_ENDPOINT": url}) as running,
    ):
        engine.reply = reply(CHAT, JSON)
        assert (await ask(await running.address())).status_code == 200
        asked_s = time.monotonic()
        assert await running.end() == 0
        assert time.monotonic() - asked_s < 10.0
