"""Against a real Ollama: its own numbers are what the records say, and what it alone does is named.

From 0.30 on it runs a llama-server for each model, which is here PyPI's xllamacpp under that name.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from fakes.ollama_templates import THINKER
from fakes.real_ollama import EXECUTABLE, MODEL, WHY_NOT, RunningOllama, real_ollama
from fakes.running import Answer, RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not EXECUTABLE, reason=WHY_NOT)]

PATIENCE_S = 60.0
NS_PER_MS = 1e6
CONTEXT = 4096  # Ollama's default on a machine without a GPU
KEPT = 4  # num_keep, Ollama's default
TOKENS = 24
LOAD_S = 1.5  # of a llama-server: the demo's model alone is there in half a second
STORY = {"prompt": "Once upon a time", "raw": True}  # goes on as long as it may
WORDS = {"messages": [{"role": "user", "content": "Name three colours."}]}
APPLES = " ".join(f"{count} apples and {count} pears." for count in range(40))
NATIVE: dict[str, dict[str, Any]] = {"/api/chat": WORDS, "/api/generate": STORY}
OPENAI: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**WORDS, "max_tokens": TOKENS},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": TOKENS},
    "/v1/responses": {"input": "Name three colours.", "max_output_tokens": TOKENS},
    "/v1/messages": {**WORDS, "max_tokens": TOKENS},
}
PROMPT_FIELDS = ("prompt_tokens", "input_tokens")
COMPLETION_FIELDS = ("completion_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Stage:
    """A proxy in front of an Ollama that answers one request at a time."""

    engine: RunningOllama
    proxy: RunningProxy

    def ask(self, path: str, **more: Any) -> Answer:
        answer = self.proxy.ask({"model": MODEL, **more}, path)
        assert answer.status == 200, answer.body
        return answer

    def native(self, path: str = "/api/generate", *, stream: bool = True, **options: Any) -> Answer:
        asked = {"temperature": 0, "seed": 1, "num_predict": TOKENS, **options}
        return self.ask(path, **NATIVE[path], stream=stream, options=asked)

    @property
    def status(self) -> dict[str, Any]:
        [engine] = self.proxy.get("/slowtok/status")["engines"]
        return dict(engine)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("ollama")
    keep_ram_bandwidth(folder / "state", ram_bytes_per_s)
    with (
        real_ollama(folder, OLLAMA_NUM_PARALLEL="1", SLOW_LOAD_S=str(LOAD_S)) as engine,
        running_proxy(folder / "state", engine.url) as proxy,
    ):
        yield Stage(engine, proxy)


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def objects(body: bytes) -> list[dict[str, Any]]:
    """The objects of a reply, streamed or whole."""
    texts = [line.removeprefix(b"data: ") for line in body.splitlines()]
    return [json.loads(text) for text in texts if text.startswith(b"{")]


def last(body: bytes) -> dict[str, Any]:
    return objects(body)[-1]


def usage_of(body: bytes) -> dict[str, Any]:
    """What a reply counts at its end."""
    held = [said.get("response", said) for said in objects(body)]
    usage: dict[str, Any] = [said["usage"] for said in held if said.get("usage")][-1]
    return usage


def finding(answer: Answer, cause: str) -> dict[str, Any]:
    [found] = [one for one in answer.record["findings"] if one["cause"] == cause]
    return dict(found)


def test_it_is_known_by_what_it_is_and_what_it_runs(stage: Stage) -> None:
    stage.native()
    until(lambda: bool(stage.status["models"][0].get("read_bytes")))
    engine, [loaded] = stage.status, stage.engine.loaded()

    known = (engine["kind"], engine["version"], engine["pid"])
    assert known == ("ollama", stage.engine.version, stage.engine.pid)
    assert engine["context_tokens"] == loaded["context_length"] == CONTEXT
    assert engine["loaded_models"] == [f"{MODEL}:latest"]
    assert (engine["loaded_bytes"], engine["loaded_gpu_bytes"]) == (loaded["size"], 0)
    [model] = engine["models"]
    assert (model["layers"], model["quantisation"]) == (30, "Q4_1")
    if stage.engine.runs_llama_server:
        assert (engine["slots"], engine["kv_type_k"]) == (1, "f16")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", NATIVE)
def test_its_own_api_is_believed(stage: Stage, path: str, stream: bool) -> None:
    answer = stage.native(path, stream=stream)
    said, record = last(answer.body), answer.record

    timing, tokens = record["timing"], record["tokens"]
    assert timing["source"] == "engine"
    for name, own in (
        ("load_ms", "load_duration"),
        ("prefill_ms", "prompt_eval_duration"),
        ("decode_ms", "eval_duration"),
    ):
        assert timing[name] == pytest.approx(said[own] / NS_PER_MS, abs=0.001), name
    counted = (said["prompt_eval_count"], said["eval_count"], said.get("prompt_eval_cached_count"))
    assert (tokens["prompt"], tokens["completion"], tokens.get("cached")) == counted
    assert record["ended"] == said["done_reason"]
    assert timing["queue_ms"] < 1000, "nobody else was there"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", OPENAI)
def test_what_it_counts_in_the_other_apis_is_believed(
    stage: Stage, path: str, stream: bool
) -> None:
    """A prompt that it has in its cache, of which a version before 0.34 says nothing, or zero."""
    wanted = {"stream_options": {"include_usage": True}} if stream and "completions" in path else {}
    asked = {**OPENAI[path], **wanted, "temperature": 0, "stream": stream}
    stage.ask(path, **asked)
    answer = stage.ask(path, **asked)
    usage, tokens = usage_of(answer.body), answer.record["tokens"]

    prompt = next(usage[name] for name in PROMPT_FIELDS if name in usage)
    assert tokens["prompt"] == prompt + usage.get("cache_read_input_tokens", 0)
    assert tokens["completion"] == next(usage[n] for n in COMPLETION_FIELDS if n in usage)
    if stream:  # of a whole reply there is an estimate, or nothing yet
        assert answer.record["timing"]["source"] == "stream"
    if stage.engine.runs_llama_server:
        assert 0 < tokens["cached"] < tokens["prompt"]
    else:
        assert "cached" not in tokens


def test_the_answer_is_that_of_a_direct_request(stage: Stage) -> None:
    asked = {"model": MODEL, **WORDS, "stream": False, "options": {"temperature": 0, "seed": 1}}

    direct = stage.engine.ask("/api/chat", asked)
    relayed = json.loads(stage.proxy.ask(asked, "/api/chat").body)

    assert relayed["message"] == direct["message"]
    assert relayed.keys() == direct.keys()


def slow_to_load(stage: Stage) -> Stage:
    """Skip what is about loads that cost something, where they cannot be made to."""
    if not stage.engine.runs_llama_server:
        pytest.skip("before 0.30 Ollama runs models itself, and the demo's loads at once")
    return stage


def test_a_load_is_named_and_a_warm_model_is_not(stage: Stage) -> None:
    slow_to_load(stage).native()
    stage.engine.unload()
    until(lambda: not stage.engine.loaded())

    cold, warm = stage.native(), stage.native()

    load = finding(cold, "model-load")
    assert load["lost_ms"] == pytest.approx(cold.record["timing"]["load_ms"], abs=1.0)
    assert "model-load" not in warm.causes
    assert warm.record["timing"]["load_ms"] < 500


def test_clients_that_ask_for_other_contexts_load_it_again_and_again(stage: Stage) -> None:
    slow_to_load(stage).native(num_ctx=1024)
    answers = [stage.native(num_ctx=tokens) for tokens in (2048, 1024, 2048)]

    for answer in answers:
        assert answer.causes, answer.record["verdict"]
        assert "context" in finding(answer, "model-load")["summary"]
    assert "num_ctx" in finding(answers[-1], "model-load")["remedy"]


def test_a_model_that_was_put_away_in_time_is_told_of(stage: Stage) -> None:
    slow_to_load(stage).native()
    stage.ask("/api/generate", **STORY, keep_alive="1s", options={"num_predict": 2})
    until(lambda: not stage.engine.loaded())

    assert "KEEP_ALIVE" in finding(stage.native(), "model-load")["remedy"]


def test_one_at_a_time_is_a_queue(stage: Stage) -> None:
    """The wait for the only place is in none of Ollama's own times but the total."""
    stage.native()
    with httpx.stream(
        "POST",
        f"{stage.proxy.url}/api/generate",
        json={"model": MODEL, **STORY, "options": {"num_predict": 300, "temperature": 0}},
        timeout=PATIENCE_S,
    ) as first:
        arriving = first.iter_raw()
        next(arriving)
        waits = threading.Thread(target=lambda: list(arriving))
        waits.start()
        second = stage.native("/api/chat")
        waits.join(PATIENCE_S)

    said, timing = last(second.body), second.record["timing"]
    own_ms = sum(said[f"{name}_duration"] for name in ("load", "prompt_eval", "eval")) / NS_PER_MS
    rest_ms = said["total_duration"] / NS_PER_MS - own_ms
    assert timing["queue_ms"] == pytest.approx(rest_ms, abs=50)
    assert "queued" in second.causes or timing["queue_ms"] < 500


def test_a_prompt_beyond_the_context_is_cut_in_silence(stage: Stage) -> None:
    """What is left fills the context, or from 0.30 on half of what need not be kept."""
    asked = {"options": {"num_ctx": 256, "num_predict": 4, "temperature": 0}, "stream": False}
    answer = stage.ask("/api/generate", prompt=APPLES, **asked)

    left = 256 - (256 - KEPT) // 2 if stage.engine.runs_llama_server else 256
    assert answer.record["tokens"]["prompt"] == left
    refused = stage.proxy.ask(
        {"model": MODEL, "prompt": APPLES, "truncate": False, **asked}, "/api/generate"
    )
    assert (refused.status, refused.record["ended"]) == (400, "http-error")


def test_a_thought_is_a_token(stage: Stage) -> None:
    stage.engine.create("thinker", template=THINKER)
    options = {"num_predict": TOKENS, "temperature": 0}
    answer = stage.ask("/api/chat", **{**WORDS, "model": "thinker"}, think=True, options=options)

    said = [json.loads(line) for line in answer.body.splitlines()]
    assert any(one["message"].get("thinking") for one in said)
    assert answer.record["timing"]["ttft_ms"] < answer.record["timing"]["total_ms"]


def test_it_drops_what_its_client_left(stage: Stage) -> None:
    asked = {"model": MODEL, **STORY, "options": {"num_predict": 2000, "temperature": 0}}
    with httpx.stream(
        "POST", f"{stage.proxy.url}/api/generate", json=asked, timeout=PATIENCE_S
    ) as reply:
        next(reply.iter_raw())
    record = stage.proxy.record(reply.headers["slowtok-id"])

    assert record["ended"] == "client-gone"
    after = stage.native()
    assert after.record["timing"]["queue_ms"] < 5000


def test_doctor_finds_it(stage: Stage, tmp_path: Path) -> None:
    stage.native()
    command = [sys.executable, "-m", "slowtok.proxy", "doctor", "--json"]
    command += ["--upstream", stage.engine.url, "--state-dir", str(tmp_path)]

    told = json.loads(subprocess.run(command, capture_output=True, timeout=120, check=False).stdout)

    states = {check["name"]: check["state"] for check in told["checks"]}
    assert (states["found"], states["model"]) == ("ok", "ok")
