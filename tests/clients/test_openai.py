"""openai-python through the proxy, with results equal to direct ones."""

import asyncio
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from fakes.both import MESSAGES, WEATHER, Both
from fakes.running import running_proxy

pytestmark = pytest.mark.engine

FIXED: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "seed": 1, "max_tokens": 32}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
CALLING: Any = {**FIXED, "tools": [TOOL], "tool_choice": "required", "max_tokens": 64}


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
    assert completion == 32


def test_stream(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            chunks = list(asked.chat.completions.create(**FIXED, stream=True))
        return [chunk.choices for chunk in chunks], [chunk.usage for chunk in chunks]

    choices, usage = both.same(ask)

    assert "".join(c[0].delta.content or "" for c in choices)
    assert usage == [None] * len(usage), "nobody has asked for it"
    assert both.newest()["tokens"]["completion"] == 32


def test_stream_with_usage(both: Both) -> None:
    def ask(url: str) -> Any:
        options: Any = {"include_usage": True}
        with client(url) as asked:
            chunks = asked.chat.completions.create(**FIXED, stream=True, stream_options=options)
            *_, last = chunks
        assert last.usage is not None
        return last.choices, last.usage.completion_tokens

    assert both.same(ask) == ([], 32)


def test_streaming_helper(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked, asked.chat.completions.stream(**FIXED) as stream:
            events = [event.type for event in stream]
            return events, stream.get_final_completion().choices

    events, choices = both.same(ask)

    assert events[-1] == "content.done"
    assert choices[0].message.content


def test_tool_call(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            choice = asked.chat.completions.create(**CALLING).choices[0]
        assert choice.message.tool_calls
        return choice.finish_reason, [
            call.to_dict()["function"] for call in choice.message.tool_calls
        ]

    reason, calls = both.same(ask)

    assert reason == "tool_calls"
    assert calls[0]["name"] == "weather"
    assert Weather.model_validate_json(calls[0]["arguments"])


def test_tool_call_streamed(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked, asked.chat.completions.stream(**CALLING) as stream:
            pieces = [e.arguments_delta for e in stream if e.type.endswith("arguments.delta")]
            choice = stream.get_final_completion().choices[0]
        assert choice.message.tool_calls
        return pieces, choice.finish_reason, choice.message.tool_calls[0].function

    pieces, reason, function = both.same(ask)

    assert reason == "tool_calls"
    assert "".join(pieces) == function.arguments
    assert both.newest()["ended"] == "tool_calls"


def test_structured_output(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            answer = asked.chat.completions.parse(**FIXED, response_format=Weather)
        return answer.choices[0].message.parsed

    assert isinstance(both.same(ask), Weather)


@pytest.mark.parametrize("stream", [False, True])
def test_responses(both: Both, stream: bool) -> None:
    asked: Any = {
        "model": "m",
        "input": "Name a colour.",
        "temperature": 0,
        "max_output_tokens": 24,
    }

    def ask(url: str) -> Any:
        with client(url) as made:
            if not stream:
                answer = made.responses.create(**asked)
                return answer.output_text, answer.usage and answer.usage.output_tokens
            with made.responses.stream(**asked) as events:
                types = [event.type for event in events]
                return types, events.get_final_response().output_text

    assert both.same(ask)
    record = both.newest()
    assert (record["path"], record["tokens"]["completion"]) == ("/v1/responses", 24)


def test_text_completion(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            chunks = asked.completions.create(
                model="m", prompt="Once upon", max_tokens=16, temperature=0, stream=True
            )
            return [chunk.choices[0].text for chunk in chunks if chunk.choices]

    assert both.same(ask)


def test_raw_response_shows_the_diagnosis(both: Both) -> None:
    with client(both.proxy.url) as asked:
        raw = asked.chat.completions.with_raw_response.create(**FIXED)

    assert raw.headers["slowtok-verdict"] in ("normal", "unknown")
    assert raw.headers["slowtok-decode"].startswith("32;")
    assert raw.parse().choices[0].finish_reason == "length"


def test_streaming_response(both: Both) -> None:
    with (
        client(both.proxy.url) as asked,
        asked.chat.completions.with_streaming_response.create(**FIXED, stream=True) as reply,
    ):
        lines = [line for line in reply.iter_lines() if line]
        request_id = reply.headers["slowtok-id"]

    assert lines[-1] == "data: [DONE]"
    assert both.proxy.record(request_id)["tokens"]["completion"] == 32


async def test_async(both: Both) -> None:
    async with async_client(both.proxy.url) as asked:
        stream = await asked.chat.completions.create(**FIXED, stream=True)
        chunks = [chunk async for chunk in stream]
        models = [model.id async for model in asked.models.list()]

    assert chunks[-1].choices[0].finish_reason == "length"
    assert models == ["m"]


async def test_async_side_by_side(both: Both) -> None:
    async with async_client(both.proxy.url) as asked:
        calls = (asked.chat.completions.create(**{**FIXED, "max_tokens": n}) for n in (4, 8, 12))
        answers = await asyncio.gather(*calls)

    counts = [answer.usage.completion_tokens for answer in answers if answer.usage]
    assert counts == [4, 8, 12]


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
