"""openai-python through the proxy, with results equal to direct ones."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from fakes.both import MESSAGES, Both
from fakes.running import running_proxy

pytestmark = pytest.mark.engine

FIXED: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "seed": 1, "max_tokens": 12}


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


def async_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


def test_whole(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            answer = asked.chat.completions.create(**FIXED)
        assert answer.usage is not None
        return answer.choices, answer.usage.prompt_tokens, answer.usage.completion_tokens

    choices, _, completion = both.same(ask)

    assert choices[0].message.content
    assert completion == 12


def test_stream(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            chunks = list(asked.chat.completions.create(**FIXED, stream=True))
        return [chunk.choices for chunk in chunks], [chunk.usage for chunk in chunks]

    choices, usage = both.same(ask)

    assert "".join(c[0].delta.content or "" for c in choices)
    assert usage == [None] * len(usage), "nobody has asked for it"
    assert both.newest()["tokens"]["completion"] == 12


def test_stream_with_usage(both: Both) -> None:
    def ask(url: str) -> Any:
        options: Any = {"include_usage": True}
        with client(url) as asked:
            chunks = asked.chat.completions.create(**FIXED, stream=True, stream_options=options)
            *_, last = chunks
        assert last.usage is not None
        return last.choices, last.usage.completion_tokens

    assert both.same(ask) == ([], 12)


def test_streaming_helper(both: Both) -> None:
    def ask(url: str) -> Any:
        ends: Any = {**FIXED, "max_tokens": 200, "stop": [":"]}  # the helper wants a whole answer
        with client(url) as asked, asked.chat.completions.stream(**ends) as stream:
            events = [event.type for event in stream]
            return events, stream.get_final_completion().choices

    events, choices = both.same(ask)

    assert events[-1] == "content.done"
    assert choices[0].message.content


def test_structured_output(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            room: Any = {**FIXED, "max_tokens": 40}
            answer = asked.chat.completions.parse(**room, response_format=Weather)
        return answer.choices[0].message.parsed

    assert isinstance(both.same(ask), Weather)


@pytest.mark.parametrize("stream", [False, True])
def test_responses(both: Both, stream: bool) -> None:
    asked: Any = {
        "model": "m",
        "input": "Name a colour.",
        "temperature": 0,
        "max_output_tokens": 12,
    }

    def ask(url: str) -> Any:
        with client(url) as made:
            if not stream:
                answer = made.responses.create(**asked)
                return answer.output_text, answer.usage and answer.usage.output_tokens
            events = list(made.responses.create(**asked, stream=True))
            return [(e.type, getattr(e, "delta", None)) for e in events]

    assert both.same(ask)
    record = both.newest()
    assert (record["path"], record["tokens"]["completion"]) == ("/v1/responses", 12)


def test_text_completion(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            chunks = asked.completions.create(
                model="m", prompt="Once upon", max_tokens=8, temperature=0, stream=True
            )
            return [chunk.choices[0].text for chunk in chunks if chunk.choices]

    assert both.same(ask)


def test_raw_response_shows_the_diagnosis(both: Both) -> None:
    with client(both.proxy.url) as asked:
        raw = asked.chat.completions.with_raw_response.create(**FIXED)

    assert raw.headers["slowtok-verdict"].partition(";")[0] in ("normal", "unknown", "slow")
    assert raw.headers["slowtok-decode"].startswith("12;")
    assert raw.parse().choices[0].finish_reason == "length"


def test_streaming_response(both: Both) -> None:
    with (
        client(both.proxy.url) as asked,
        asked.chat.completions.with_streaming_response.create(**FIXED, stream=True) as reply,
    ):
        lines = [line for line in reply.iter_lines() if line]
        request_id = reply.headers["slowtok-id"]

    assert lines[-1] == "data: [DONE]"
    assert both.proxy.record(request_id)["tokens"]["completion"] == 12


async def test_async(both: Both) -> None:
    async with async_client(both.proxy.url) as asked:
        stream = await asked.chat.completions.create(**FIXED, stream=True)
        chunks = [chunk async for chunk in stream]
        models = [model.id async for model in asked.models.list()]

    assert chunks[-1].choices[0].finish_reason == "length"
    assert models == ["m"]


async def test_async_side_by_side(both: Both) -> None:
    async with async_client(both.proxy.url) as asked:
        calls = (asked.chat.completions.create(**{**FIXED, "max_tokens": n}) for n in (2, 4, 6))
        answers = await asyncio.gather(*calls)

    counts = [answer.usage.completion_tokens for answer in answers if answer.usage]
    assert counts == [2, 4, 6]


def test_error_is_the_engines_own(both: Both) -> None:
    long: Any = [{"role": "user", "content": "word " * 5000}]

    def ask(url: str) -> Any:
        with client(url) as asked, pytest.raises(openai.BadRequestError) as caught:
            asked.chat.completions.create(model="m", messages=long)
        return caught.value.body

    assert both.same(ask)


def test_what_failed_is_named_when_the_engine_is_gone(tmp_path: Path) -> None:
    with (
        running_proxy(tmp_path, "http://127.0.0.1:9") as proxy,
        client(proxy.url) as asked,
        pytest.raises(openai.InternalServerError, match=r"127\.0\.0\.1:9 refused") as caught,
    ):
        asked.chat.completions.create(**FIXED)

    assert caught.value.status_code == 502


def test_a_key_of_the_proxys_own(tmp_path: Path, both: Both) -> None:
    with running_proxy(tmp_path, both.direct, options=("--api-key", "k")) as proxy:
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=0) as asked:
            assert asked.chat.completions.create(**{**FIXED, "max_tokens": 2}).choices
        with client(proxy.url) as asked, pytest.raises(openai.AuthenticationError) as caught:
            asked.chat.completions.create(**FIXED)

    assert caught.value.code == "invalid_api_key"
