"""Against a real vLLM: its own counters, timings and facts are what the records say."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy
from fakes.vllm import CONTEXT, EXECUTABLE, WHY_NOT, RunningVllm, make_model, real_vllm

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not EXECUTABLE, reason=WHY_NOT)]

PATIENCE_S = 60.0
LONG_TOKENS = 6000  # some seconds
QUESTION = "Which of these is the quick brown fox? " * 4
WORDS = [{"role": "user", "content": QUESTION}]
TOKENS = 400  # long enough for counters that are asked at most four times a second
MORE = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": WORDS, **MORE}),
    "text": ("/v1/completions", {"prompt": QUESTION, **MORE}),
    "responses": (
        "/v1/responses",
        {"input": QUESTION, "max_output_tokens": TOKENS, "temperature": 0},
    ),
    "messages": ("/v1/messages", {"messages": WORDS, "max_tokens": TOKENS, "temperature": 0}),
}
SUMS = {"queue_ms": "queue", "prefill_ms": "prefill", "decode_ms": "decode"}
TOLD = ("--enable-per-request-metrics", "--enable-prompt-tokens-details")


@dataclass(frozen=True, slots=True)
class Stage:
    """A proxy in front of two vLLMs; `told` puts timings and cached tokens into its replies."""

    plain: RunningVllm
    told: RunningVllm
    proxy: RunningProxy


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("vllm")
    make_model(folder / "model")
    keep_ram_bandwidth(folder / "state", ram_bytes_per_s)
    with (
        real_vllm(folder / "model", "plain") as plain,
        real_vllm(folder / "model", "told", *TOLD) as told,
        running_proxy(folder / "state", f"plain={plain.url}", f"told={told.url}") as proxy,
    ):
        yield Stage(plain, told, proxy)


def ask(stage: Stage, model: str, name: str, **more: Any) -> tuple[bytes, dict[str, Any]]:
    path, body = CALLS[name]
    answer = stage.proxy.ask({"model": model, **body, **more}, path)
    assert answer.status == 200, answer.body
    return answer.body, answer.record


def last_metrics(body: bytes) -> dict[str, float]:
    """The timings that the engine put into its reply."""
    texts = [line.removeprefix(b"data: ") for line in body.splitlines() if line]
    objects = [json.loads(text) for text in texts if text.startswith(b"{")]
    held = [said.get("response", said) for said in objects]
    metrics: dict[str, float] = [said["metrics"] for said in held if said.get("metrics")][-1]
    return metrics


def engines_of(stage: Stage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.proxy.get("/slowtok/status")["engines"]
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_both_engines_are_known_by_what_they_are(stage: Stage) -> None:
    until(lambda: all("pid" in engine and engine["models"] for engine in engines_of(stage)))
    engines = {engine["name"]: engine for engine in engines_of(stage)}

    for name, running in (("plain", stage.plain), ("told", stage.told)):
        engine = engines[name]
        version = httpx.get(f"{running.url}/version", timeout=30).json()["version"]
        assert (engine["kind"], engine["version"], engine["pid"]) == ("vllm", version, running.pid)
        assert (engine["context_tokens"], engine["eager"]) == (CONTEXT, True)
        assert engine["kv_cache_tokens"] > CONTEXT
        [model] = engine["models"]
        assert (model["name"], model["layers"], model["quantisation"]) == (name, 2, "BF16")
        assert model["kv_bytes_per_token"] == 2 * 2 * 32 * 2  # K and V, layers, head, bytes
    listed = httpx.get(f"{stage.proxy.url}/v1/models", timeout=30).json()["data"]
    assert {entry["id"] for entry in listed} == {"plain", "told"}


@pytest.mark.engine_speed
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_a_request_alone_is_timed_by_what_the_counters_gained(
    stage: Stage, name: str, stream: bool
) -> None:
    engine = stage.plain
    sums = {key: f"request_{one}_time_seconds_sum" for key, one in SUMS.items()}
    before = {key: engine.count(metric) for key, metric in sums.items()}
    prompt, made = engine.count("prompt_tokens_total"), engine.count("generation_tokens_total")

    _, record = ask(stage, "plain", name, stream=stream)

    until(lambda: engine.count("generation_tokens_total") - made == record["tokens"]["completion"])
    assert engine.count("prompt_tokens_total") - prompt == record["tokens"]["prompt"]
    assert record["upstream"]["name"] == "plain"
    assert record["ended"] in ("length", "stop")
    timing = record["timing"]
    assert timing["source"] == "metrics"
    for key, metric in sums.items():
        gained_ms = (engine.count(metric) - before[key]) * 1000
        assert timing[key] == pytest.approx(gained_ms, abs=0.01), key


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "messages"])
def test_an_engine_that_tells_is_believed(stage: Stage, name: str, stream: bool) -> None:
    options = {"stream_options": {"include_usage": True}}  # which has the timings, too
    wanted = options if stream and name != "responses" else {}
    body, record = ask(stage, "told", name, stream=stream, **wanted)

    said, timing = last_metrics(body), record["timing"]
    assert timing["source"] == "engine"
    assert timing["queue_ms"] == pytest.approx(said["queue_time_ms"], abs=0.001)
    assert timing["prefill_ms"] == pytest.approx(said["time_to_first_token_ms"], abs=0.001)
    assert timing["decode_ms"] == pytest.approx(said["generation_time_ms"], abs=0.001)
    assert record["tokens"]["cached"] is not None


def test_what_comes_from_the_prefix_cache_is_counted(stage: Stage) -> None:
    fresh = [{"role": "user", "content": "Over the lazy dog it jumps. " * 20}]
    records = [ask(stage, "told", "chat", messages=fresh)[1] for _ in range(2)]

    first, second = (record["tokens"] for record in records)
    assert first["prompt"] == second["prompt"]
    assert first["cached"] < second["cached"] < second["prompt"]


def test_the_answer_is_that_of_a_direct_request(stage: Stage) -> None:
    path, body = CALLS["chat"]
    asked = {"model": "plain", **body}

    direct = httpx.post(stage.plain.url + path, json=asked, timeout=PATIENCE_S).json()
    relayed, _ = ask(stage, "plain", "chat")

    varying = {"id", "created"}
    said = json.loads(relayed)
    assert {k: v for k, v in said.items() if k not in varying} == {
        k: v for k, v in direct.items() if k not in varying
    }


@pytest.mark.engine_speed
def test_beside_a_request_that_only_the_engine_saw_nothing_is_put_down_to_prefill(
    stage: Stage,
) -> None:
    path, body = CALLS["text"]
    asked = {"model": "plain", **body, "stream": True, "max_tokens": LONG_TOKENS}
    url = stage.plain.url + path

    with httpx.stream("POST", url, json=asked, timeout=PATIENCE_S) as other:
        arriving = other.iter_raw()  # kept: httpx closes the reply with it
        next(arriving)
        _, record = ask(stage, "plain", "chat", stream=True, max_tokens=LONG_TOKENS // 4)

    assert record["timing"]["source"] == "stream"
    assert record["timing"]["decode_ms"] > 0
    assert "prefill_ms" not in record["timing"]


def test_the_engine_drops_what_its_client_left(stage: Stage) -> None:
    engine, (path, body) = stage.plain, CALLS["chat"]
    asked = {"model": "plain", **body, "stream": True, "max_tokens": LONG_TOKENS}
    until(lambda: engine.count("num_requests_running") == 0)
    made = engine.count("generation_tokens_total")

    with httpx.stream("POST", stage.proxy.url + path, json=asked, timeout=PATIENCE_S) as reply:
        next(reply.iter_raw())
    record = stage.proxy.record(reply.headers["slowtok-id"])

    assert record["ended"] == "client-gone"
    until(lambda: engine.count("num_requests_running") == 0)
    assert engine.count("generation_tokens_total") - made < LONG_TOKENS


def test_doctor_finds_it(stage: Stage, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slowtok.proxy", "doctor", "--json"]
    command += ["--upstream", stage.plain.url, "--state-dir", str(tmp_path)]

    told = json.loads(subprocess.run(command, capture_output=True, timeout=120, check=False).stdout)

    states = {check["name"]: check["state"] for check in told["checks"]}
    assert (states["found"], states["model"], states["fit"]) == ("ok", "ok", "ok")
