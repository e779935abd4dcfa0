"""Nothing of prompts, answers and keys is in anything that slowtok writes or shows."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.client import Client, connect
from fakes.commands import run, served
from fakes.upstream import Upstream
from fakes.wire import JSON, Head, reply

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ended by a signal")

PROMPT, ANSWER, KEY = "plum-in-the-prompt", "pear-in-the-answer", "kiwi-in-the-key"
SECRETS = (PROMPT, ANSWER, KEY)
FIELDS = (
    f"Authorization: Bearer {KEY}",
    f"X-Api-Key: {KEY}",
    f"Cookie: session={KEY}",
    f"X-Request-Id: {KEY}",
)
SAID: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": f"Be brief. {PROMPT}"},
        {"role": PROMPT, "name": PROMPT, "content": [{"type": "text", "text": PROMPT * 50}]},
    ],
    "tools": [{"type": "function", "function": {"name": PROMPT, "description": PROMPT}}],
    "user": PROMPT,
    "metadata": {PROMPT: PROMPT},
}
TIMINGS = {
    "prompt_n": 400,
    "cache_n": 0,
    "prompt_ms": 900.0,
    "predicted_n": 40,
    "predicted_ms": 5000.0,
}
MESSAGE = {"role": "assistant", "content": ANSWER, "reasoning_content": ANSWER}
CHUNK = {"choices": [{"delta": MESSAGE, "finish_reason": "stop"}], "timings": TIMINGS}
WHOLE = {"choices": [{"message": MESSAGE, "finish_reason": "stop"}], "timings": TIMINGS}
STREAM = f"data: {json.dumps(CHUNK)}\n\ndata: {ANSWER}\n\ndata: [DONE]\n\n".encode()

EVENTS = "Content-Type: text/event-stream"
FAILED = json.dumps({"error": {"message": f"cannot parse: {PROMPT}", "code": 400}}).encode()


def own_fields(head: Head) -> str:
    """The fields of a reply that are the proxy's own."""
    lines = head.raw.decode("latin-1").split("\r\n")
    return "\n".join(line for line in lines if line.lower().startswith(("slowtok", "server-t")))


async def speak(client: Client, engine: Upstream) -> list[Head]:
    """Have every kind of exchange that could spill something; return the heads of the replies.

    An error that is slowtok's own may not tell what the engine said.
    """
    heads = []
    for answer, said in (
        (reply(STREAM, EVENTS), SAID),
        (reply(STREAM, EVENTS), SAID),
        (reply(json.dumps(WHOLE).encode(), JSON), {**SAID, "stream": False}),
        (reply(FAILED, JSON, status="400 Bad Request"), {**SAID, "stream": False}),
        (reply(STREAM[:-40], EVENTS), SAID),
        (f"{ANSWER} is no HTTP\r\n\r\n".encode(), {**SAID, "stream": False}),
    ):
        engine.reply = answer
        await client.chat(*FIELDS, **said)
        head, body = await client.reply()
        heads.append(head)
        assert head.status != 502 or not any(secret.encode() in body for secret in SECRETS)
    engine.reply = reply(b"ok")
    for text in (f'{{"prompt": "{PROMPT}', f'["{PROMPT}"]', f'{{"prompt": ["{PROMPT}"]}}'):
        await client.ask("POST", "/v1/completions", JSON, *FIELDS, body=text.encode())
        heads.append((await client.reply())[0])
    await client.ask("GET", f"/v1/models?api_key={KEY}", *FIELDS)
    heads.append((await client.reply())[0])
    return heads


async def own_page(client: Client, path: str) -> str:
    await client.ask("GET", path)
    head, body = await client.reply()
    assert head.status == 200
    return body.decode()


def written(directory: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.name, path.read_text("utf-8", errors="replace")


async def test_no_output_holds_a_secret(engine: Upstream, tmp_path: Path) -> None:
    state, cases = tmp_path / "state", tmp_path / "cases"
    state.mkdir()
    shown: dict[str, str] = {}
    async with served(state, "--upstream", engine.url, "--record", str(cases)) as running:
        address = await running.address()
        port = int(address.rpartition(":")[2])
        client = await connect(port)
        heads = await speak(client, engine)
        shown["own headers"] = "\n".join(own_fields(head) for head in heads)
        broken = await connect(port)
        await broken.send(f"POST /v1/completions HTTP/1.1\r\nX-Key: {KEY}\0\r\n\r\n".encode())
        await broken.rest()
        for head in heads:  # waits for the record
            await own_page(client, f"/slowtok/requests/{head.get('slowtok-id')}")
        for path in ("/slowtok/requests", "/slowtok/status", "/slowtok/health"):
            shown[path] = await own_page(client, path)
        records = json.loads(shown["/slowtok/requests"])
        shown["explain"] = run("explain", records[-1]["id"], "--listen", address).stdout
        client.close()
        broken.close()
        assert await running.end(signal.SIGTERM) == 0
    shown["standard output"], shown["standard error"] = "".join(running.out), "".join(running.err)
    shown["tail"] = run("tail", "--no-follow", "--state-dir", str(state)).stdout
    shown |= dict(written(state)) | {f"case {name}": text for name, text in written(cases)}

    assert len(records) == 10
    assert sum("verdict" in record for record in records) == 9
    assert "prefill" in shown["explain"]
    assert "slowtok-id" in shown["own headers"]
    assert len([name for name in shown if name.startswith("case")]) == 9
    assert '"event":"internal-error"' in shown["log.jsonl"], "the broken request"
    assert len(shown["tail"].splitlines()) == 9
    found = [(name, secret) for name, text in shown.items() for secret in SECRETS if secret in text]
    assert found == []
