"""Against a real llama-server: the same bytes as without the proxy, and the engine's own times."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.engine import RunningEngine, real_engine
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

# Times of two clocks are compared, on a machine that others may use: a difference has to stay.
pytestmark = pytest.mark.engine

# What the engine itself varies from one reply to the next: ids, clocks, and what it measured.
VARYING = re.compile(
    rb'"(?:id|created|prompt_ms|prompt_per_token_ms|prompt_per_second|predicted_ms'
    rb'|predicted_per_token_ms|predicted_per_second|cache_n|prompt_n|cached_tokens)":("[^"]*"|[\d.e+-]+)'
)
PROMPT = "Name three colours and say what each is like."


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[tuple[RunningEngine, RunningProxy]]:
    state_dir: Path = tmp_path_factory.mktemp("state")
    keep_ram_bandwidth(state_dir, ram_bytes_per_s)
    with (
        real_engine(threads=2, slots=2, context=4096) as engine,
        running_proxy(state_dir, engine.url) as proxy,
    ):
        yield engine, proxy


def body(**more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": PROMPT}
    return {
        "model": "m",
        "messages": [message],
        "max_tokens": 48,
        "temperature": 0,
        "seed": 1,
        **more,
    }


CALLS = {
    "chat": ("/v1/chat/completions", body()),
    "chat-stream": ("/v1/chat/completions", body(stream=True)),
    "chat-stream-usage": (
        "/v1/chat/completions",
        body(stream=True, stream_options={"include_usage": True}),
    ),
    "chat-logprobs": ("/v1/chat/completions", body(stream=True, logprobs=True, top_logprobs=3)),
    "chat-n2": ("/v1/chat/completions", body(stream=True, n=2)),
    "text": ("/v1/completions", {"prompt": PROMPT, "max_tokens": 32, "temperature": 0}),
    "text-stream": (
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "stream": True},
    ),
    "native-stream": (
        "/completion",
        {"prompt": PROMPT, "n_predict": 16, "temperature": 0, "stream": True},
    ),
    "tokenize": ("/tokenize", {"content": PROMPT}),
    "bad-request": ("/v1/chat/completions", {"messages": 3}),
    "unknown-path": ("/v1/nope", {}),
}


def post(base_url: str, path: str, asked: Any) -> tuple[int, dict[str, str], bytes]:
    reply = httpx.post(base_url + path, json=asked, timeout=120)
    return reply.status_code, dict(reply.headers), reply.content


@pytest.mark.parametrize("name", CALLS)
def test_the_bytes_are_those_of_a_direct_request(
    running: tuple[RunningEngine, RunningProxy], name: str
) -> None:
    engine, proxy = running
    path, asked = CALLS[name]

    _, _, first = post(engine.url, path, asked)  # fills the engine's prompt cache for both
    status, headers, direct = post(engine.url, path, asked)
    relayed_status, relayed_headers, relayed = post(proxy.url, path, asked)

    assert first
    assert relayed_status == status
    assert _lines(relayed) == _lines(direct)
    assert relayed_headers["content-type"] == headers["content-type"]
    assert relayed_headers["server"] == headers["server"]


def _lines(content: bytes) -> list[bytes]:
    """Cut into events; with n = 2 the engine interleaves the choices as its threads run."""
    return sorted(VARYING.sub(b"", content).split(b"\n\n"))


@pytest.mark.engine_speed
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["chat", "text"])
def test_prefill_and_decode_agree_with_the_engine(
    running: tuple[RunningEngine, RunningProxy], name: str, stream: bool
) -> None:
    path, asked = CALLS[name]

    answer = running[1].ask({**asked, "stream": stream, "max_tokens": 96}, path)

    timings = _timings(answer.body)
    timing = answer.record["timing"]
    assert timing["source"] == "engine"
    assert timing["prefill_ms"] == pytest.approx(timings["prompt_ms"], rel=0.03, abs=3)
    assert timing["decode_ms"] == pytest.approx(timings["predicted_ms"], rel=0.03, abs=3)
    counted = {
        "prompt": timings["cache_n"] + timings["prompt_n"],
        "cached": timings["cache_n"],
        "completion": timings["predicted_n"],
    }
    assert answer.record["tokens"].items() >= counted.items()
    phases = sum(timing[name] for name in ("queue_ms", "prefill_ms", "decode_ms"))
    assert phases <= timing["total_ms"] * 1.02


@pytest.mark.engine_speed
def test_the_stream_alone_tells_the_same_decode_time(
    running: tuple[RunningEngine, RunningProxy],
) -> None:
    asked = body(stream=True, max_tokens=128)

    answer = running[1].ask(asked)

    timing = answer.record["timing"]
    assert timing["decode_stream_ms"] == pytest.approx(timing["decode_ms"], rel=0.05, abs=15)


@pytest.mark.engine_speed
def test_a_non_streamed_reply_carries_its_own_diagnosis(
    running: tuple[RunningEngine, RunningProxy],
) -> None:
    answer = running[1].ask(body())

    assert answer.headers["slowtok-id"] == answer.record["id"]
    assert answer.headers["slowtok-verdict"] in ("normal", "unknown")  # too short for "slow"
    assert answer.headers["slowtok-decode"].startswith("48;ms=")
    assert "prefill;dur=" in answer.headers["server-timing"]
    assert answer.headers["slowtok-expected"].endswith('basis="roofline"')


def test_curl(running: tuple[RunningEngine, RunningProxy]) -> None:
    url = f"{running[1].url}/v1/chat/completions"
    command = ["curl", "-sS", "-N", "-D", "-", url, "-H", "Content-Type: application/json"]

    said = subprocess.run(
        [*command, "-d", json.dumps(body(stream=True))], capture_output=True, check=True, timeout=60
    ).stdout

    assert said.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nslowtok-id: " in said
    assert said.endswith(b"data: [DONE]\n\n")


def _timings(content: bytes) -> dict[str, Any]:
    """Return the engine's own timings out of a reply, whole or streamed."""
    texts = [line.removeprefix(b"data: ") for line in content.splitlines()]
    found = [json.loads(text) for text in texts if text.startswith(b"{") and b'"timings"' in text]
    timings: dict[str, Any] = found[-1]["timings"]
    return timings
