"""Short replies through the installed command: what a head says is what the record says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.client import Client, connect
from fakes.commands import served
from fakes.upstream import CLOSE, Upstream
from fakes.wire import JSON, SSE, Head, reply
from slowtok.proxy.outputs.headers import decimal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is one process only")

REPLIES = 40


def timings(number: int) -> bytes:
    """Those of a reply of which no two are alike; every fifth claims more time than passed."""
    decode_ms = (5 + number) * (9000 if number % 5 == 4 else 1)
    return (
        b'"timings":{"prompt_n":%d,"cache_n":%d,"prompt_ms":%d.5,"predicted_n":%d,'
        b'"predicted_ms":%d.25}' % (100 + 40 * number, number, 1 + number, 2 + number, decode_ms)
    )


def whole(number: int) -> bytes:
    """A whole reply."""
    choice = b'{"message":{"content":"hi"},"finish_reason":"stop"}'
    return reply(b'{"model":"small","choices":[%s],%s}' % (choice, timings(number)), JSON)


def stream(number: int) -> bytes:
    """A stream, all at once."""
    token = b'data: {"choices":[{"delta":{"content":"hi"}}]}'
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],%s}' % timings(number)
    return reply(b"\n\n".join((token, end, b"data: [DONE]", b"")), SSE)


def lists_a_model(engine: Upstream) -> None:
    """Let the engine say how large its model is, so that there is an expectation."""
    model = {
        "id": "small",
        "object": "model",
        "owned_by": "llamacpp",
        "meta": {"n_params": 134_515_008, "size": 89_000_000, "n_ctx_train": 8192},
    }
    listed = {"object": "list", "data": [model]}
    engine.looks["/v1/models"] = reply(
        json.dumps(listed).encode(), JSON, "Server: llama.cpp", CLOSE
    )


async def record_of(client: Client, head: Head) -> dict[str, Any]:
    await client.ask("GET", f"/slowtok/requests/{head.get('slowtok-id')}")
    shown, body = await client.reply()
    assert shown.status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def milliseconds(head: Head, name: str) -> str | None:
    """What `Server-Timing` says of one phase."""
    parts = dict(part.split(";dur=") for part in (head.get("server-timing") or "").split(", "))
    return parts.get(name)


def edges_of(head: Head) -> tuple[float, ...]:
    """What `slowtok-expected` says of the band."""
    edges, _, _ = (head.get("slowtok-expected") or "").removeprefix("(").partition(")")
    return tuple(map(float, edges.split()))


async def test_a_head_says_what_the_record_says(engine: Upstream, tmp_path: Path) -> None:
    lists_a_model(engine)
    arguments = ("--upstream", engine.url, "--ram-bandwidth", "2")
    async with served(tmp_path, *arguments) as running:
        client = await connect(int((await running.address()).rpartition(":")[2]))
        said, verdicts = None, set()
        for number in range(REPLIES):
            is_stream = number % 4 == 3
            await client.chat(stream=is_stream)
            await (await engine.next()).answer((stream if is_stream else whole)(number))
            head, _ = await client.reply()
            record = await record_of(client, head)
            assert head.get("slowtok-previous") == said
            said = f'{record["verdict"]};id="{record["id"]}"'
            if is_stream:
                continue
            assert head.get("slowtok-verdict") == record["verdict"]
            verdicts.add(record["verdict"])
            expected = record["expected"]
            edges = (expected["decode_low_tps"], expected["decode_high_tps"])
            assert edges_of(head) == pytest.approx(edges, abs=0.1)
            tokens, timing, rate = record["tokens"], record["timing"], record["rate"]
            assert head.get("slowtok-prefill") == (
                f"{tokens['prompt']};cached={tokens['cached']};"
                f"ms={decimal(timing['prefill_ms'], 1)};rate={decimal(rate['prefill_tps'], 2)}"
            )
            assert head.get("slowtok-decode") == (
                f"{tokens['completion']};ms={decimal(timing['decode_ms'], 1)};"
                f"rate={decimal(rate['decode_tps'], 2)}"
            )
            for phase in ("queue", "prefill", "decode"):
                assert milliseconds(head, phase) == decimal(timing[f"{phase}_ms"])
        client.close()
        assert verdicts == {"normal", "unknown"}
        assert await running.end() == 0
