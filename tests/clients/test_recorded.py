"""Clients before engines that are not here: what a real vLLM sent, and tool calls as it sends them.

The small model of the other tests calls no tools, so those replies are written after
`vllm/entrypoints/openai/chat_completion/protocol.py` (0.33).
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from fakes import recordings
from fakes.both import WEATHER, Both
from fakes.player import playing
from fakes.running import keep_ram_bandwidth, running_proxy
from fakes.wire import JSON, SSE, reply

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FIXED: Any = {"model": "smollm2", "messages": [{"role": "user", "content": "?"}]}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
CALLS = [
    {"id": f"call-{i}", "type": "function", "index": i, "function": {"name": "weather", **given}}
    for i, given in enumerate(({"arguments": '{"city":"Rome"}'}, {"arguments": '{"city":"Paris"}'}))
]


def raw(name: str) -> bytes:
    return b"".join(piece for _, piece in recordings.load(f"vllm-0.32.{name}").chunks)


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    said = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "smollm2"}
    return b"data: " + json.dumps({**said, "choices": [choice], **more}).encode() + b"\n\n"


LOOKS = {"/v1/models": raw("models"), "/version": raw("version"), "/metrics": raw("metrics")}


def called() -> tuple[bytes, bytes]:
    """Two tool calls, streamed in pieces and whole."""
    pieces = [chunk({"role": "assistant", "content": ""})]
    for call in CALLS:
        function: Any = call["function"]
        begun = {**call, "function": {**function, "arguments": ""}}
        pieces.append(chunk({"tool_calls": [begun]}))
        for letter in function["arguments"]:
            part = {"index": call["index"], "function": {"arguments": letter}}
            pieces.append(chunk({"tool_calls": [part]}))
    pieces += [chunk({}, "tool_calls"), b"data: [DONE]\n\n"]
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    said = {"id": "c", "object": "chat.completion", "created": 1, "model": "smollm2"}
    whole = {**said, "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 30}}
    return b"".join(pieces), json.dumps(whole).encode()


@contextlib.contextmanager
def served(state_dir: Path, replies: dict[tuple[str, bool], bytes]) -> Iterator[Both]:
    keep_ram_bandwidth(state_dir, 2e10)
    with playing(LOOKS, replies) as url, running_proxy(state_dir, url) as proxy:
        yield Both(url, proxy)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    replies = {
        (CHAT, False): raw("chat"),
        (CHAT, True): raw("chat-stream-usage"),
        (MESSAGES, False): raw("messages"),
        (MESSAGES, True): raw("messages-stream"),
        (RESPONSES, False): raw("responses"),
        (RESPONSES, True): raw("responses-stream"),
    }
    with served(tmp_path_factory.mktemp("vllm"), replies) as both:
        yield both


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    stream, whole = called()
    replies = {(CHAT, True): reply(stream, SSE), (CHAT, False): reply(whole, JSON)}
    with served(tmp_path_factory.mktemp("calling"), replies) as both:
        yield both


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_of_vllm(vllm: Both, stream: bool) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            if not stream:
                return asked.chat.completions.create(**FIXED)
            options: Any = {"include_usage": True}
            return list(asked.chat.completions.create(**FIXED, stream=True, stream_options=options))

    assert vllm.same(ask)
    record = vllm.newest()
    assert (record["upstream"]["kind"], record["stream"]) == ("vllm", stream)
    assert record["tokens"]["completion"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_messages_of_vllm(vllm: Both, stream: bool) -> None:
    def ask(url: str) -> Any:
        with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as asked:
            if not stream:
                return asked.messages.create(**FIXED, max_tokens=9)
            with asked.messages.stream(**FIXED, max_tokens=9) as events:
                return list(events.text_stream), events.get_final_message()

    assert vllm.same(ask)
    assert vllm.newest()["tokens"]["completion"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_responses_of_vllm(vllm: Both, stream: bool) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            if not stream:
                return asked.responses.create(model="smollm2", input="?")
            return list(asked.responses.create(model="smollm2", input="?", stream=True))

    assert vllm.same(ask)
    assert vllm.newest()["tokens"]["completion"] > 0


def test_tool_calls(calling: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            choice = asked.chat.completions.create(**FIXED, tools=TOOLS).choices[0]
        return [call.to_dict() for call in choice.message.tool_calls or []]

    assert calling.same(ask) == CALLS
    assert calling.newest()["ended"] == "tool_calls"


def test_tool_calls_streamed(calling: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked, asked.chat.completions.stream(**FIXED, tools=TOOLS) as stream:
            types = [event.type for event in stream]
            message = stream.get_final_completion().choices[0].message
        return types, [call.function.arguments for call in message.tool_calls or []]

    types, arguments = calling.same(ask)

    assert types.count("tool_calls.function.arguments.done") == 2
    assert arguments == ['{"city":"Rome"}', '{"city":"Paris"}']
    assert calling.newest()["ended"] == "tool_calls"
