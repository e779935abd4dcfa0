"""Real clients and a real llama-server: streams that carry their record, and whole replies that
were put together from a stream, equal to the engine's own."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from fakes.engine import RunningEngine, real_engine
from fakes.ollama import MODEL, ollama_stand_in
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = pytest.mark.engine

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
FIXED: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "seed": 1, "max_tokens": 24}
VARYING = (  # of each reply, whoever asks
    "id", "created", "created_at", "completed_at", "timings", "prompt_tokens_details",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[RunningEngine]:
    with real_engine(threads=2, slots=2, context=4096) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(
    engine: RunningEngine, tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float
) -> Iterator[RunningProxy]:
    state: Path = tmp_path_factory.mktemp("state")
    keep_ram_bandwidth(state, ram_bytes_per_s)
    config = state / "slowtok.toml"
    config.write_text('split_nonstreamed = "stream"\n')
    with running_proxy(state, engine.url, options=("--config", str(config))) as running:
        yield running


@pytest.mark.parametrize("mode", ["comment", "chunk"])
@pytest.mark.parametrize("usage", [True, False])
def test_openai_reads_an_annotated_stream(proxy: RunningProxy, mode: str, usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0) as client:
        plain = list(client.chat.completions.create(**FIXED, **options, stream=True))
        chunks = list(
            client.chat.completions.create(
                **FIXED, **options, stream=True, extra_headers={"slowtok-annotate": mode}
            )
        )

    assert _texts(chunks) == _texts(plain) != ""
    carried: list[Any] = [(chunk.model_extra or {}).get("slowtok") for chunk in chunks]
    assert not any(carried[:-1])
    assert (carried[-1] is not None) == (mode == "chunk")
    if mode == "chunk":
        assert carried[-1]["tokens"]["completion"] == 24
        assert carried[-1]["timing"]["source"] == "engine"


def _texts(chunks: list[Any]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def test_openais_streaming_helper_reads_one_too(proxy: RunningProxy) -> None:
    with (
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0) as client,
        client.chat.completions.stream(
            model="m",
            messages=MESSAGES,
            max_tokens=24,
            extra_headers={"slowtok-annotate": "comment"},
        ) as stream,
    ):
        kinds = {event.type for event in stream}

    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_curl_shows_the_comment(proxy: RunningProxy) -> None:
    command = ["curl", "-sS", "-N", f"{proxy.url}/v1/chat/completions"]
    command += ["-H", "Content-Type: application/json", "-H", "slowtok-annotate: comment"]

    said = subprocess.run(
        [*command, "-d", json.dumps({**FIXED, "stream": True})],
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout

    *_, comment, done, nothing = said.split(b"\n\n")
    record = json.loads(comment.removeprefix(b": slowtok "))
    assert (done, nothing) == (b"data: [DONE]", b"")
    assert record["tokens"]["completion"] == 24
    assert proxy.record(record["id"])["verdict"] == record["verdict"]


@pytest.mark.parametrize("mode", ["comment", "chunk"])
def test_ollama_reads_annotated_lines(engine: RunningEngine, tmp_path: Path, mode: str) -> None:
    with (
        ollama_stand_in(engine.url) as url,
        running_proxy(tmp_path, url) as relayed,
        ollama.Client(host=relayed.url, headers={"slowtok-annotate": mode}) as client,
        httpx.stream(
            "POST",
            f"{relayed.url}/api/chat",
            json={"model": MODEL, "messages": MESSAGES},
            headers={"slowtok-annotate": mode},
            timeout=60,
        ) as raw,
    ):
        lines = [json.loads(line) for line in raw.iter_lines()]
        parts = list(client.chat(MODEL, MESSAGES, stream=True))

    assert parts[-1].done
    assert "".join(part.message.content or "" for part in parts)
    assert ("slowtok" in lines[-1]) == (mode == "chunk")
    assert not any("slowtok" in line for line in lines[:-1])


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", FIXED),
    "chat-n2": ("/v1/chat/completions", {**FIXED, "n": 2}),
    "chat-logprobs": ("/v1/chat/completions", {**FIXED, "logprobs": True, "top_logprobs": 2}),
    "chat-stop": ("/v1/chat/completions", {**FIXED, "stop": [" "]}),
    "chat-json": (
        "/v1/chat/completions",
        {**FIXED, "response_format": {"type": "json_object"}},
    ),
    "text": ("/v1/completions", {"prompt": "Red,", "max_tokens": 16, "temperature": 0, "seed": 1}),
    "messages": ("/v1/messages", {**FIXED, "system": "Be short."}),
    "messages-stop": ("/v1/messages", {**FIXED, "stop_sequences": [" "]}),
    "responses": (
        "/v1/responses",
        {"model": "m", "input": "Name three colours.", "max_output_tokens": 16, "temperature": 0},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_reply_put_together_is_the_engines_own(
    engine: RunningEngine, proxy: RunningProxy, name: str
) -> None:
    path, asked = CALLS[name]
    httpx.post(engine.url + path, json=asked, timeout=60)  # fills the engine's prompt cache
    direct = httpx.post(engine.url + path, json=asked, timeout=60).json()

    answer = proxy.ask(asked, path)
    whole = json.loads(answer.body)

    assert answer.headers["content-type"] == "application/json"
    assert answer.record["stream"] is True
    assert {"ttft_ms", "decode_stream_ms"} <= set(answer.record["timing"])
    if name == "chat-n2":  # the engine itself counts the first answer only
        counted = whole["usage"].pop("completion_tokens"), whole["usage"].pop("total_tokens")
        own = direct["usage"].pop("completion_tokens"), direct["usage"].pop("total_tokens")
        assert counted[0] == 2 * own[0]
    assert _meaning(whole) == _meaning(direct)


def _meaning(value: Any) -> Any:
    """Without what varies, nulls and empty lists: what a client library makes of it is the same."""
    if isinstance(value, dict):
        kept = {k: _meaning(v) for k, v in value.items() if k not in VARYING}
        return {k: v for k, v in kept.items() if v not in (None, [], {})}
    if isinstance(value, float):
        return round(value, 3)  # of the same tokens, computed again
    return [_meaning(one) for one in value] if isinstance(value, list) else value


def test_the_engines_error_is_the_clients(engine: RunningEngine, proxy: RunningProxy) -> None:
    asked = {"messages": [{"role": "user", "content": "word " * 6000}]}
    direct, relayed = (
        httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60)
        for url in (engine.url, proxy.url)
    )

    assert (relayed.status_code, relayed.json()) == (direct.status_code, direct.json())


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/completion"])
@pytest.mark.parametrize("stream", [True, False])
def test_each_api_has_counts_and_a_reason(proxy: RunningProxy, path: str, stream: bool) -> None:
    asked = {
        "/v1/responses": {"input": "Name three colours.", "max_output_tokens": 12},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
        "/completion": {"prompt": "Name three colours.", "n_predict": 12},
    }[path]
    greedy = {"model": "m", "temperature": 0}  # a drawn answer may end before its twelve tokens

    record = proxy.ask({**asked, **greedy, "stream": stream}, path).record

    assert record["tokens"]["completion"] == 12
    assert record["tokens"]["prompt"] >= 4
    assert record["ended"] in ("length", "stop")  # llama-server calls each response completed
    assert "verdict" in record
    if stream:
        assert record["rate"]["decode_tps"] > 0
        assert record["timing"]["ttft_ms"] > 0
