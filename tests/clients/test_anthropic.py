"""anthropic-sdk-python through the proxy: llama-server answers its API, too."""

from typing import Any

import anthropic
import pytest

from fakes.both import MESSAGES, WEATHER, Both

pytestmark = pytest.mark.engine

FIXED: Any = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
TOOL: Any = {"name": "weather", "description": "of a city", "input_schema": WEATHER}
CALLING: Any = {**FIXED, "tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 64}


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)


def test_message(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            answer = asked.messages.create(**FIXED)
        return answer.content, answer.stop_reason, answer.usage.output_tokens

    content, reason, count = both.same(ask)

    assert content[0].text
    assert (reason, count) == ("max_tokens", 24)
    record = both.newest()
    assert (record["path"], record["tokens"]["completion"]) == ("/v1/messages", 24)


def test_streaming_helper(both: Both) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked, asked.messages.stream(**FIXED) as stream:
            return list(stream.text_stream), stream.get_final_message().content

    pieces, content = both.same(ask)

    assert "".join(pieces) == content[0].text != ""
    record = both.newest()
    assert (record["stream"], record["tokens"]["completion"]) == (True, 24)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_use(both: Both, stream: bool) -> None:
    def ask(url: str) -> Any:
        with client(url) as asked:
            if not stream:
                answer = asked.messages.create(**CALLING)
            else:
                with asked.messages.stream(**CALLING) as events:
                    answer = events.get_final_message()
        [used] = [block for block in answer.content if block.type == "tool_use"]
        return used.name, used.input, answer.stop_reason

    name, given, reason = both.same(ask)

    assert (name, reason) == ("weather", "tool_use")
    assert given["city"] in ("Paris", "Rome")


def test_count_tokens(both: Both) -> None:
    def ask(url: str) -> int:
        with client(url) as asked:
            return asked.messages.count_tokens(model="m", messages=MESSAGES).input_tokens

    assert both.same(ask) > 0


async def test_async(both: Both) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=both.proxy.url, api_key="x", max_retries=0
    ) as asked:
        answer = await asked.messages.create(**FIXED)

    assert answer.usage.output_tokens == 24


def test_error_is_the_engines_own(both: Both) -> None:
    long: Any = [{"role": "user", "content": "word " * 5000}]

    def ask(url: str) -> Any:
        with client(url) as asked, pytest.raises(anthropic.BadRequestError) as caught:
            asked.messages.create(model="m", messages=long, max_tokens=4)
        return caught.value.body

    assert both.same(ask)
