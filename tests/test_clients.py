"""Real client libraries through the proxy, with results equal to direct ones."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from fakes.engine import RunningEngine, real_engine
from fakes.ollama import MODEL, ollama_stand_in
from fakes.running import RunningProxy, keep_ram_bandwidth, running_proxy

pytestmark = pytest.mark.engine

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
FIXED: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "seed": 1, "max_tokens": 32}


@dataclass(frozen=True)
class Running:
    engine: RunningEngine
    ollama_url: str
    openai_proxy: RunningProxy
    ollama_proxy: RunningProxy

    @contextlib.contextmanager
    def clients(self) -> Iterator[tuple[openai.OpenAI, openai.OpenAI]]:
        """Give a direct client and one through the proxy."""
        direct, relayed = (f"{url}/v1" for url in (self.engine.url, self.openai_proxy.url))
        with (
            openai.OpenAI(base_url=direct, api_key="x", max_retries=0) as direct_client,
            openai.OpenAI(base_url=relayed, api_key="x", max_retries=0) as relayed_client,
        ):
            yield direct_client, relayed_client


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, ram_bytes_per_s: float) -> Iterator[Running]:
    state: Path = tmp_path_factory.mktemp("state")
    for name in ("openai", "ollama"):
        keep_ram_bandwidth(state / name, ram_bytes_per_s)
    with (
        real_engine(threads=2, slots=2, context=4096) as engine,
        ollama_stand_in(engine.url) as ollama_url,
        running_proxy(state / "openai", engine.url) as openai_proxy,
        running_proxy(state / "ollama", ollama_url) as ollama_proxy,
    ):
        yield Running(engine, ollama_url, openai_proxy, ollama_proxy)


def test_openai_plain(running: Running) -> None:
    with running.clients() as clients:
        answers = [client.chat.completions.create(**FIXED) for client in clients]

    texts = [answer.choices[0].message.content for answer in answers]
    assert texts[0] == texts[1]
    counts = [answer.usage.completion_tokens for answer in answers if answer.usage]
    assert counts == [counts[0]] * 2


def test_openai_raw_response_shows_the_diagnosis(running: Running) -> None:
    with running.clients() as (_, relayed):
        raw = relayed.chat.completions.with_raw_response.create(**FIXED)

    assert raw.headers["slowtok-verdict"] in ("normal", "unknown")
    assert raw.headers["slowtok-decode"].startswith("32;")
    assert raw.parse().choices[0].finish_reason == "length"


def test_openai_streaming_response(running: Running) -> None:
    with (
        running.clients() as (_, relayed),
        relayed.chat.completions.with_streaming_response.create(**FIXED, stream=True) as reply,
    ):
        lines = [line for line in reply.iter_lines() if line]
        request_id = reply.headers["slowtok-id"]

    assert lines[-1] == "data: [DONE]"
    assert running.openai_proxy.record(request_id)["tokens"]["completion"] == 32


def test_openai_stream_is_the_direct_one(running: Running) -> None:
    def text(client: openai.OpenAI) -> str:
        chunks = client.chat.completions.create(**FIXED, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with running.clients() as (direct, relayed):
        assert text(relayed) == text(direct) != ""


async def test_openai_async(running: Running) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{running.openai_proxy.url}/v1", api_key="x", max_retries=0
    ) as client:
        stream = await client.chat.completions.create(**FIXED, stream=True)
        chunks = [chunk async for chunk in stream]
        models = [model.id async for model in client.models.list()]

    assert chunks[-1].choices[0].finish_reason == "length"
    assert models


def test_openai_error_is_the_engines_own(running: Running) -> None:
    messages: Any = [{"role": "user", "content": "word " * 5000}]
    said = []
    with running.clients() as clients:
        for client in clients:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="m", messages=messages)
            said.append(caught.value.body)

    assert said[0] == said[1]


def test_openai_names_what_failed_when_the_engine_is_gone(tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, "http://127.0.0.1:9") as proxy,
        openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.InternalServerError, match=r"127\.0\.0\.1:9 refused") as caught,
    ):
        client.chat.completions.create(**FIXED)

    assert caught.value.status_code == 502


@pytest.mark.parametrize("stream", [False, True])
def test_ollama_chat(running: Running, stream: bool) -> None:
    asked: Any = {
        "model": MODEL,
        "messages": MESSAGES,
        "options": {"num_predict": 24, "temperature": 0, "seed": 1},
    }
    texts = []
    for url in (running.ollama_url, running.ollama_proxy.url):
        with ollama.Client(host=url) as client:
            answer: Any = client.chat(**asked, stream=stream)
            parts = list(answer) if stream else [answer]
        texts.append("".join(part.message.content for part in parts))
        assert parts[-1].done
        assert parts[-1].eval_count > 0

    assert texts[0] == texts[1] != ""


def test_ollama_generate_is_timed_by_the_engines_own_word(running: Running) -> None:
    with ollama.Client(host=running.ollama_proxy.url) as client:
        answer = client.generate(MODEL, "Name three colours.", options={"num_predict": 24})

    record = running.ollama_proxy.get("/slowtok/requests?limit=1")[0]
    assert record["upstream"]["kind"] == "ollama"
    assert record["path"] == "/api/generate"
    assert record["timing"]["source"] == "engine"
    assert record["timing"]["decode_ms"] == pytest.approx(
        (answer.eval_duration or 0) / 1e6, rel=0.03
    )
    assert record["tokens"]["completion"] == answer.eval_count


async def test_ollama_async(running: Running) -> None:
    async with ollama.AsyncClient(host=running.ollama_proxy.url) as client:
        parts = [part async for part in await client.chat(MODEL, MESSAGES, stream=True)]
        models = [model.model for model in (await client.list()).models]

    assert parts[-1].done
    assert models == [MODEL]


def test_a_local_page_reaches_ollama_in_spite_of_its_origin_check(running: Running) -> None:
    import httpx  # noqa: PLC0415 - the one test that needs a bare request

    headers = {"Origin": "http://localhost:3000"}
    direct = httpx.get(f"{running.ollama_url}/api/tags", headers=headers)
    relayed = httpx.get(f"{running.ollama_proxy.url}/api/tags", headers=headers)

    assert direct.status_code == 403
    assert relayed.status_code == 200
    assert relayed.headers["access-control-allow-origin"] == "http://localhost:3000"
